/* engine_bells.c - whose doorbell wakes which boards.
 *
 * A doorbell is an eventfd of a client, and carries no name of a group. So the engine knows the
 * boards of each client. The member that rings has set engine_asleep in its board from 1 to 0: that
 * is what the engine looks for when a doorbell rings.
 *
 * It looks at all boards of the client, but at BELL_LOOKS of them in a turn, so that one client
 * with thousands of groups does not hold up the others. Another ring begins the round anew: a
 * member may have written after its board was looked at. Until the round is over the engine does
 * not sleep (engine_arm()).
 *
 * A board is in the lists of its clients from engine_board_add() to eboard_remove(), whether they
 * have a doorbell or not. Where commd has given a client's slot to another client meanwhile, a ring
 * wakes boards of both, which is harmless. */
#include "transport/engine/engine_internal.h"

enum { BELL_LOOKS = 64 };

struct ebell {
    struct ebell *ringing;  /* the next doorbell whose round is not over */
    struct eboard **boards; /* owned; borrowed boards */
    unsigned n, room;
    unsigned at, left; /* the board to look at next, and how many are left in this round */
    bool listed;
};

static struct ebell *bell_get(struct engine *e, unsigned client)
{
    if (client >= ENGINE_MAX_CLIENTS)
        return NULL;
    if (client >= e->nbells) {
        unsigned n = client + 64;
        struct ebell **more = realloc(e->bells, n * sizeof(struct ebell *));

        if (!more)
            return NULL;
        memset(more + e->nbells, 0, (n - e->nbells) * sizeof(struct ebell *));
        e->bells = more;
        e->nbells = n;
    }
    if (!e->bells[client])
        e->bells[client] = calloc(1, sizeof(struct ebell));
    return e->bells[client];
}

static int bell_list(struct ebell *bell, struct eboard *eb)
{
    if (bell->n == bell->room) {
        unsigned room = MAX(bell->room * 2, 4u);
        struct eboard **more = realloc(bell->boards, room * sizeof(struct eboard *));

        if (!more)
            return -ENOMEM;
        bell->boards = more;
        bell->room = room;
    }
    assert(bell->n < bell->room);
    bell->boards[bell->n++] = eb;
    return 0;
}

int bells_board_add(struct eboard *eb, const struct msg_board_add *m)
{
    assert(!eb->clients);
    assert(eb->nclients == 0);
    eb->clients = calloc(MAX(m->nclients, 1u), sizeof *eb->clients);
    if (!eb->clients)
        return -ENOMEM;
    for (unsigned i = 0; i < m->nclients; i++) {
        struct ebell *bell = bell_get(eb->e, m->clients[i]);

        if (!bell || bell_list(bell, eb)) {
            bells_board_del(eb);
            return -ENOMEM;
        }
        eb->clients[eb->nclients++] = m->clients[i];
    }
    return 0;
}

static void bell_unlist(struct engine *e, unsigned client, const struct eboard *eb)
{
    struct ebell *bell;
    unsigned i = 0;

    assert(client < e->nbells);
    assert(e->bells[client]);
    bell = e->bells[client];
    while (i < bell->n && bell->boards[i] != eb)
        i++;
    assert(i < bell->n);
    bell->boards[i] = bell->boards[--bell->n];
    if (bell->left) /* the board that took this place may have been the next */
        bell->left = bell->n;
    if (bell->n == 0) {
        free(steal_ptr(bell->boards));
        bell->room = 0;
    }
}

void bells_board_del(struct eboard *eb)
{
    while (eb->nclients)
        bell_unlist(eb->e, eb->clients[--eb->nclients], eb);
}

/* Looks at the next boards of the round; true if the round is over. */
static bool bell_look(struct ebell *bell)
{
    assert(bell->left <= bell->n);
    for (unsigned i = 0; i < BELL_LOOKS && bell->left; i++) {
        struct eboard *eb = bell->boards[bell->at % bell->n];

        bell->at = (bell->at + 1) % bell->n;
        bell->left--;
        if (!eb->active &&
            atomic_load_explicit(&eb->b.hdr->engine_asleep, memory_order_relaxed) == 0)
            eboard_activate(eb);
    }
    return bell->left == 0;
}

void engine_wake_client(struct engine *e, unsigned client)
{
    struct ebell *bell = client < e->nbells ? e->bells[client] : NULL;

    if (!bell)
        return;
    bell->left = bell->n;
    if (bell->listed || bell_look(bell))
        return;
    bell->listed = true;
    bell->ringing = e->ringing;
    e->ringing = bell;
}

bool bells_turn(struct engine *e)
{
    for (struct ebell **p = &e->ringing; *p;) {
        struct ebell *bell = *p;

        assert(bell->listed);
        bell->listed = !bell_look(bell);
        if (bell->listed)
            p = &bell->ringing;
        else
            *p = bell->ringing;
    }
    return e->ringing != NULL;
}

void bells_free(struct engine *e)
{
    for (unsigned i = 0; i < e->nbells; i++) {
        if (e->bells[i])
            free(e->bells[i]->boards);
        free(e->bells[i]);
    }
    free(e->bells);
}
