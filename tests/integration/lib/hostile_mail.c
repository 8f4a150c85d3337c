/* hostile_mail.c - two ranks on two nodes that do to the way between them what a member can do:
 *
 *     hostile_mail RANK GROUPS RECORDS      $COMMD_SOCKET: of its node's commd
 *
 * Rank 1 leaves their first group. Then they open and close so many others that node 1 may forget
 * it, and rank 0 goes on writing parts of long messages to it, as fast as its slots are sent. It
 * ends with 0 when all have been taken, or when its group is broken. */
#include <stdio.h>
#include <stdlib.h>

#include "client/lib/async/async.h"

static void must(int r, const char *what)
{
    if (!r)
        return;
    fprintf(stderr, "%s: %s\n", what, commd_last_error()->message);
    exit(1);
}

static struct commd_group *join(struct commd_context *ctx, const char *name, int rank)
{
    struct commd_group *g = NULL;

    must(commd_group_join(ctx, name, rank, 2, 30000, &g), "join");
    return g;
}

static bool broken(const struct commd_group *g)
{
    return atomic_load(&g->now->board.hdr->broken);
}

static void pause_briefly(void)
{
    struct timespec t = {.tv_nsec = 100000};

    nanosleep(&t, NULL);
}

static void flood(struct commd_group *g, unsigned records)
{
    const struct mail *m = &g->now->board.mail;
    struct mail_box *box = mail_box(m, g->now->local);
    struct mail_tx tx;

    mail_engine_tx_init(m, g->now->local, &tx);
    for (unsigned i = 0; i < records && !broken(g); i++) {
        unsigned slot = m->data_begin + i % MAIL_DATA_NET;
        struct mail_rec rec = {.kind = MAIL_DATA,
                               .src = 0,
                               .dst = 1,
                               .slot = (uint8_t)slot,
                               .id = 1 + i / MAIL_DATA_NET,
                               .len = m->chunk};

        while (!mail_room(&tx) || atomic_load(&box->out[slot]) != rec.id - 1) {
            if (broken(g))
                return;
            pause_briefly();
        }
        mail_put(&tx, &rec);
        mail_flag(tx.word, tx.bit);
        group_wake_engine(g->now);
    }
}

int main(int argc, char **argv)
{
    int rank = atoi(argv[1]), groups = atoi(argv[2]), records = atoi(argv[3]);
    struct commd_context *ctx = NULL;
    struct commd_group *first;
    char name[32];

    must(commd_connect(NULL, &ctx), "connect");
    first = join(ctx, "hostile", rank);
    if (rank == 1)
        commd_group_leave(first);
    for (int i = 0; i < groups; i++) {
        snprintf(name, sizeof name, "hostile-%d", i);
        commd_group_leave(join(ctx, name, rank));
    }
    if (rank == 0)
        flood(first, (unsigned)records);
    printf("done%s\n", rank == 0 && broken(first) ? ", broken" : "");
    fflush(stdout);
    getchar(); /* until told */
    commd_disconnect(ctx);
    return 0;
}
