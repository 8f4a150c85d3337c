/* unmatched.c - ranks that wait for each other for ever: is it because one side does not ask for
 * the message that the other side sends? Then the evidence is what both sides ask for.
 *
 * A message is matched by its sender, its receiver and its tag. If the receiver asks for another
 * tag or another sender, the sender of a long message waits; a short message lies at the receiver,
 * which has not asked for it (unasked). */
#include "client/ctl/finding.h"

#include <stdio.h>

static bool has_wish(const struct seat *s)
{
    return is_open(s) && *s->message;
}

static bool sends(const struct seat *s)
{
    return s->sends;
}

static bool receives(const struct seat *s, int64_t from, int64_t tag)
{
    return !sends(s) && (s->message_peer < 0 || s->message_peer == from) &&
           (s->message_tag < 0 || s->message_tag == tag);
}

bool is_under_way(const struct seat *a, const struct seat *b)
{
    const struct seat *from = sends(a) ? a : b, *to = from == a ? b : a;

    return same_group(a, b) && has_wish(a) && has_wish(b) && sends(from) &&
           from->message_peer == to->rank && receives(to, from->rank, from->message_tag);
}

/* "to send to rank 1 with tag 7" */
static void say_wish(struct finding *f, const struct seats *seats, const struct seat *s)
{
    char name[SEAT_NAME], peer[RANK_NAME] = "any rank", tag[32] = "any tag";
    char group[GROUP_NAME], of[GROUP_NAME + 16] = "";

    if (s->message_peer >= 0)
        rank_name(seats, s, s->message_peer, peer);
    if (s->message_tag >= 0)
        snprintf(tag, sizeof(tag), "tag %lld", (long long)s->message_tag);
    if (!s->world)
        snprintf(of, sizeof(of), " of group \"%s\"", group_name(s, group));
    tell(f->evidence, "%s%s %s to %s %s with %s, for %.1f s", seat_name(s, name), of,
         f->killed ? "had waited" : "waits", sends(s) ? "send to" : "receive from", peer, tag,
         (double)s->message_ms / 1000);
}

void say_unasked(struct finding *f, const struct seats *seats, const struct seat *s)
{
    char from[RANK_NAME], to[RANK_NAME];

    if (has_wish(s) && s->unasked_from >= 0)
        tell(f->evidence,
             "a message of %s with tag %llu has come to %s, which has not asked for it",
             rank_name(seats, s, s->unasked_from, from), (unsigned long long)s->unasked_tag,
             rank_name(seats, s, s->rank, to));
}

static void say_side(struct finding *f, const struct seats *seats, const struct seat *s)
{
    char name[SEAT_NAME];

    if (has_wish(s))
        say_wish(f, seats, s);
    else if (in_operation(s))
        tell(f->evidence, "%s %s in operation %u (%s)", seat_name(s, name),
             f->killed ? "had waited" : "waits", s->started, or_unknown(s->operation));
    say_unasked(f, seats, s);
}

/* Who has the other end of the message that @s waits for; from any rank: who sends to it. */
static const struct seat *other_end(const struct seats *seats, const struct seat *s)
{
    group_each(o, seats, s) {

        if (o == s || o->rank < 0)
            continue;
        if (s->message_peer >= 0 ? o->rank == s->message_peer
                                 : stuck_in_message(o) && sends(o) && o->message_peer == s->rank)
            return o;
    }
    return NULL;
}

/* A third one that asks for what @s sends, or to which that has come which @s asks for. */
static const struct seat *third_side(const struct seats *seats, const struct seat *s)
{
    group_each(o, seats, s) {

        if (o == s || o->rank == s->message_peer || !has_wish(o))
            continue;
        if (sends(s) ? receives(o, s->rank, s->message_tag)
                     : o->unasked_from == s->message_peer &&
                           receives(s, o->unasked_from, (int64_t)o->unasked_tag))
            return o;
    }
    return NULL;
}

bool find_unmatched(struct finding *f, const struct seats *seats, const struct seat *s)
{
    const struct seat *o = other_end(seats, s), *third = third_side(seats, s);
    bool lies = !sends(s) && s->unasked_from >= 0 && s->unasked_from == s->message_peer;

    assert(*s->message);
    if (!o || is_under_way(s, o))
        return false;
    if (!lies && !third && !(has_wish(o) && sends(o) != sends(s)))
        return false; /* an order: both send, both receive, or one is in an operation */
    f->verdict = VERDICT_UNMATCHED;
    say_side(f, seats, s);
    say_side(f, seats, o);
    if (third)
        say_side(f, seats, third);
    tell(f->evidence, "no send of one side is what the other asks for, and each waits for the "
                      "other");
    tell(f->remedy, "compare rank and tag that both sides pass; is a send or a receive missing on "
                    "one of them?");
    return true;
}
