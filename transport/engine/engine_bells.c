/* engine_bells.c - whose doorbell wakes which boards.
 *
 * A doorbell belongs to a client and says nothing: an eventfd can carry no descriptor, and no name
 * of a group either. So the engine knows of each client the boards that it is a member of. The
 * member that rings has set engine_asleep from 1 to 0 in its board, which is what a ring looks for.
 *
 * A ring looks at all boards of its client, BELL_LOOKS of them at once and in each turn, so that
 * one client with thousands of groups does not hold up the others. Another ring begins the round
 * anew: a board that was looked at before its member wrote is looked at again. Until the round is
 * over the engine does not sleep (engine_arm()).
 *
 * A board is in the lists of its clients from engine_board_add() to eboard_remove(), whether they
 * have a doorbell or not. A slot may have gone to another client meanwhile: its ring then finds
 * boards of the former one too, which is harmless. */
#include "transport/engine/engine_internal.h"

enum { BELL_LOOKS = 64 };

struct ebell {
    struct ebell *ringing;  /* next one whose round is not over */
    struct eboard **boards; /* owned; borrowed boards */
    unsigned n, room;
    unsigned at, left; /* next one to look at, and how many */
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
    bell->boards[bell->n++] = eb;
    return 0;
}

int bells_board_add(struct eboard *eb, const struct msg_board_add *m)
{
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
    struct ebell *bell = e->bells[client];

    for (unsigned i = 0; i < bell->n; i++)
        if (bell->boards[i] == eb) {
            bell->boards[i] = bell->boards[--bell->n];
            break;
        }
    if (bell->left) /* the one that took its place may have been the next */
        bell->left = bell->n;
    if (bell->n == 0) {
        free(bell->boards);
        bell->boards = NULL;
        bell->room = 0;
    }
}

void bells_board_del(struct eboard *eb)
{
    while (eb->nclients)
        bell_unlist(eb->e, eb->clients[--eb->nclients], eb);
}

/* The next boards of the round; true if it is over. */
static bool bell_look(struct ebell *bell)
{
    for (unsigned i = 0; i < BELL_LOOKS && bell->left && bell->n; i++) {
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
