/* act_client.c - libcommd as everybody has it, in children, while this process holds a rank of
 * the same group by hand and spoils its board. Our own children may fail, hang until their
 * alarm, or crash: they are ours. */
#include <commd/commd.h>
#include <signal.h>
#include <stdio.h>
#include <sys/prctl.h>

#include "shm/model/coll.h"
#include "tests/hostile/hostile.h"

enum { CHILD_S = 3, OP_MS = 200, BYTES = 1 << 20 };

static void one_op(struct dice *d, struct commd_group *group, unsigned size, uint8_t *memory)
{
    static const size_t counts[] = {1, 100, 2000, 20000, BYTES / 64};
    struct commd_op op = {
        .size = sizeof(op), .dtype = COMMD_F32, .redop = COMMD_SUM, .timeout_ms = OP_MS};

    op.coll = dice_one_in(d, 3) ? (dice_one_in(d, 2) ? COMMD_SEND : COMMD_RECV)
                                : (int)dice_below(d, COLL_ALL_TO_ALL + 1);
    op.count = counts[dice_below(d, ARRAY_LEN(counts))];
    op.peer = (int)dice_below(d, size);
    op.send = memory;
    op.recv = memory + BYTES / 2;
    commd_run(group, &op);
}

/* Never returns. */
static void member(struct hostile *h, const char *name, unsigned rank, unsigned size)
{
    struct commd_options options = {.size = sizeof(options), .timeout_ms = 1000};
    struct commd_context *context;
    struct commd_group *group;
    struct dice d = {h->dice.state + rank};
    uint8_t *memory = NULL;

    prctl(PR_SET_PDEATHSIG, SIGKILL);
    alarm(CHILD_S);
    options.socket = h->sockets[dice_below(&d, h->nsockets)];
    if (commd_connect(&options, &context))
        _exit(0);
    if (dice_one_in(&d, 2) && commd_alloc(context, BYTES, (void **)&memory))
        memory = NULL;
    if (!memory)
        memory = calloc(1, BYTES);
    if (!memory || commd_group_join(context, name, (int)rank, (int)size, 500, &group))
        _exit(0);
    for (unsigned i = 0; i < 20; i++) {
        one_op(&d, group, size, memory);
        if (dice_one_in(&d, 40))
            raise(SIGSTOP); /* hostile.c continues us */
        if (dice_one_in(&d, 40))
            raise(SIGKILL);
    }
    if (dice_one_in(&d, 2))
        commd_group_leave(group);
    if (dice_one_in(&d, 2))
        commd_disconnect(context);
    _exit(0);
}

static bool child(struct hostile *h, const char *name, unsigned rank, unsigned size)
{
    pid_t pid;

    if (h->nchildren >= CHILDREN)
        return false;
    pid = fork();
    if (pid == 0)
        member(h, name, rank, size);
    h->nchildren += pid > 0;
    return pid > 0;
}

/* All ranks by libcommd: what an honest user does, with children that stop and die. */
static void job(struct hostile *h)
{
    unsigned size = 2 + dice_below(&h->dice, 2);
    char name[64];

    snprintf(name, sizeof(name), "%s-%u", h->prefix, h->names++);
    for (unsigned r = 0; r < size; r++)
        if (!child(h, name, r, size))
            return;
}

/* The last rank is held by hand, and its board is one of our groups: the actions of act_board.c
 * go on in it. */
static void spoiled_job(struct hostile *h)
{
    unsigned size = 2 + dice_below(&h->dice, 2);
    char name[64];
    struct team *g;

    snprintf(name, sizeof(name), "%s-%u", h->prefix, h->names);
    for (unsigned r = 0; r + 1 < size; r++)
        if (!child(h, name, r, size))
            break;
    g = team_join(h, size, size - 1);
    if (g)
        for (int i = 0; i < 20; i++)
            board_actions[dice_below(&h->dice, 10)].act(h);
}

const struct action client_actions[] = {
    {"job", 2, job},
    {"spoiled_job", 3, spoiled_job},
    {NULL, 0, NULL},
};
