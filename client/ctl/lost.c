/* lost.c - what broke a group, where it was no rank: the words of the cause say which node, engine
 * or way between them. They are commd's own (daemon/core/core_peer.c, core_engine.c, peer_link.c).
 */
#include "client/ctl/finding.h"

#include <stdio.h>

/* The name between @before and the next of @after in @text goes to @name. */
static const char *take_name(const char *text, const char *before, const char *after,
                             char name[MSG_NAME_MAX])
{
    const char *begin = strstr(text, before), *end;

    if (!begin)
        return NULL;
    begin += strlen(before);
    end = strstr(begin, after);
    if (!end || end == begin || (size_t)(end - begin) >= MSG_NAME_MAX)
        return NULL;
    snprintf(name, MSG_NAME_MAX, "%.*s", (int)(end - begin), begin);
    return end + strlen(after);
}

static void find_engine_lost(struct finding *f, const char *text)
{
    char other[MSG_NAME_MAX] = "";
    const char *rest = take_name(text, "the engines of nodes ", " and ", f->lost_node);

    if (rest && take_name(rest - 1, " ", " lost each other", other)) {
        f->verdict = VERDICT_LINK_DEAD;
        tell(f->remedy,
             "does anything come through between these nodes: ping, ip -s link? If so, and commctl "
             "nodes says that they are up: does a firewall on node %s or %s let the ports of the "
             "engines through (transport.port_range of commd.yaml; nft list ruleset)? Can large "
             "packets pass: ping -M do -s 8972",
             f->lost_node, other);
        return;
    }
    f->verdict = VERDICT_ENGINE_DEAD;
    if (take_name(text, "the engine of node ", " was lost", f->lost_node))
        tell(f->remedy, "look at commd's log on node %s: journalctl -u commd; commctl events there",
             f->lost_node);
    else
        tell(f->remedy, "look at commd's log on that node: journalctl -u commd");
}

static void find_node_lost(struct finding *f, const char *text)
{
    const char *why = take_name(text, "node ", " was lost: ", f->lost_node);

    if (why && strstr(why, "ended the link")) {
        f->verdict = VERDICT_COMMD_DEAD;
        tell(f->remedy,
             "the node is there, and its commd has ended: on node %s systemctl status commd, "
             "journalctl -u commd",
             f->lost_node);
    } else if (why && strstr(why, "the link failed")) {
        f->verdict = VERDICT_LINK_DEAD;
        tell(f->remedy,
             "nothing comes through to node %s: is the node up, its interface and its switch port? "
             "ping it; ip -s link; commctl nodes",
             f->lost_node);
    } else {
        f->verdict = VERDICT_NODE_DEAD;
        tell(f->remedy,
             "look at node %s: is it up, is the way to it? Does its commd run, and is it not "
             "stopped: systemctl status commd",
             why ? f->lost_node : "that is named");
    }
}

void find_lost(struct finding *f, const struct seat *of)
{
    static const struct {
        const char *cause;
        enum verdict verdict;
        const char *remedy;
    } causes[] = {
        {"rank lost", VERDICT_RANK_DEAD, "look at that rank's own output"},
        {"aborted", VERDICT_ABORTED, "look at the output of the rank that gave the group up"},
    };

    if (is(of->cause, "node lost"))
        return find_node_lost(f, of->cause_text);
    if (is(of->cause, "engine lost"))
        return find_engine_lost(f, of->cause_text);
    f->verdict = VERDICT_BROKEN;
    for (unsigned i = 0; i < ARRAY_LEN(causes); i++)
        if (is(of->cause, causes[i].cause)) {
            f->verdict = causes[i].verdict;
            return tell(f->remedy, "%s", causes[i].remedy);
        }
    tell(f->remedy, "look at the ranks' own output");
}
