/* lost.c - what broke a group, where it was no rank: the text of the cause says which node, engine
 * or way between two of them. */
#include "client/ctl/finding.h"

#include <stdio.h>

/* @other: the second node of two. */
static bool find_apart(struct finding *f, enum cause_told told, const char *other)
{
    if (told == TOLD_FORGED) {
        f->verdict = VERDICT_LINK_TAMPERED;
        tell(f->remedy,
             "something between nodes %s and %s changes, drops or injects bytes of an encrypted "
             "connection: a person, a broken device, or a proxy; nothing of it has come into a "
             "result. Look at what is on that way: traceroute, arp -n on both, the switches",
             f->lost_node, other);
        return true;
    }
    if (told != TOLD_ENGINES_APART)
        return false;
    f->verdict = VERDICT_LINK_DEAD;
    tell(f->remedy,
         "does anything come through between these nodes: ping, ip -s link? If so, and commctl "
         "nodes says that they are up: does a firewall on node %s or %s let the ports of the "
         "engines through (transport.port_range of commd.yaml; nft list ruleset)? Can large "
         "packets pass: ping -M do -s 8972",
         f->lost_node, other);
    return true;
}

static void find_engine_lost(struct finding *f, enum cause_told told)
{
    f->verdict = VERDICT_ENGINE_DEAD;
    if (told == TOLD_ENGINE_LOST)
        tell(f->remedy, "look at commd's log on node %s: journalctl -u commd; commctl events there",
             f->lost_node);
    else
        tell(f->remedy, "look at commd's log on that node: journalctl -u commd");
}

/* Node @by says so. */
static void find_refused(struct finding *f, const char *by)
{
    f->verdict = VERDICT_NODE_REFUSED;
    tell(f->remedy,
         "node %s is shut out by its certificate until it has a new one: doc/operations.md, "
         "\"Certificates\"; if nobody meant to: cluster.ca and cluster.crl of %s%s",
         f->lost_node, by ? "node " : "the node that says so", by ? by : "");
}

static void find_node_lost(struct finding *f, enum cause_told told)
{
    if (told == TOLD_COMMD_ENDED) {
        f->verdict = VERDICT_COMMD_DEAD;
        tell(f->remedy,
             "the node is there, and its commd has ended: on node %s systemctl status commd, "
             "journalctl -u commd",
             f->lost_node);
    } else if (told == TOLD_CERTIFICATE) {
        find_refused(f, NULL);
    } else if (told == TOLD_LINK_FAILED) {
        f->verdict = VERDICT_LINK_DEAD;
        tell(f->remedy,
             "nothing comes through to node %s: is the node up, its interface and its switch port? "
             "ping it; ip -s link; commctl nodes",
             f->lost_node);
    } else {
        f->verdict = VERDICT_NODE_DEAD;
        tell(f->remedy,
             "look at %s%s: is it up, is the way to it? Does its commd run, and is it not "
             "stopped: systemctl status commd",
             told == TOLD_NODE_LOST ? "node " : "the node that the cause names",
             told == TOLD_NODE_LOST ? f->lost_node : "");
    }
}

void find_lost(struct finding *f, enum cause cause, enum cause_told told,
               char names[2][MSG_NAME_MAX])
{
    assert(told != TOLD_KICK);
    snprintf(f->lost_node, sizeof(f->lost_node), "%s", names[0]);
    if (find_apart(f, told, names[1]))
        return;
    if (told == TOLD_REFUSES) {
        snprintf(f->lost_node, sizeof(f->lost_node), "%s", names[1]);
        return find_refused(f, names[0]);
    }
    if (cause == CAUSE_NODE_LOST)
        return find_node_lost(f, told);
    if (cause == CAUSE_ENGINE_LOST)
        return find_engine_lost(f, told);
    f->verdict = cause == CAUSE_RANK_LOST ? VERDICT_RANK_DEAD
                 : cause == CAUSE_ABORTED ? VERDICT_ABORTED
                                          : VERDICT_BROKEN;
    tell(f->remedy, cause == CAUSE_RANK_LOST ? "look at that rank's own output"
                    : cause == CAUSE_ABORTED
                        ? "look at the output of the rank that gave the group up"
                        : "look at the ranks' own output");
}
