/* example.h - what the examples share: who am I, and errors that end the program.
 *
 * A launcher (torchrun, mpirun with a wrapper, a shell loop) starts one process per rank and says
 * which is which in RANK and WORLD_SIZE. To try an example on one node without one,
 *
 *     ./ring --ranks 4
 *
 * makes the ranks itself: by fork(), before anything of commd is used. (A context belongs to the
 * process that connected; a child has to connect by itself.) */
#ifndef COMMD_EXAMPLE_H
#define COMMD_EXAMPLE_H

#include <commd/commd.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

struct example {
    struct commd_context *context;
    struct commd_group *group;
    int rank, size;
};

/* For every call that returns 0 or an error: prints what happened, to whom and why, and ends. The
 * other ranks are told by commd that this one is gone. */
#define TRY(call)                                                                                  \
    do {                                                                                           \
        if (call) {                                                                                \
            fprintf(stderr, "%s\n", commd_last_error()->message);                                  \
            exit(1);                                                                               \
        }                                                                                          \
    } while (0)

/* For results. */
#define CHECK(condition)                                                                           \
    do {                                                                                           \
        if (!(condition)) {                                                                        \
            fprintf(stderr, "%s:%d: wrong result: %s\n", __FILE__, __LINE__, #condition);          \
            exit(1);                                                                               \
        }                                                                                          \
    } while (0)

/* The parent: waits for all, and ends as badly as the worst of them did. */
static inline void example_wait(int ranks)
{
    int worst = 0, status;

    for (int i = 0; i < ranks; i++)
        if (wait(&status) < 0 || !WIFEXITED(status) || WEXITSTATUS(status))
            worst = 1;
    exit(worst);
}

/* Connects and joins group @name. All ranks of one run must use a name that no other run uses at
 * the same time: commd puts the job before it, where the launcher names one. */
static inline void example_start(int argc, char **argv, const char *name, struct example *ret)
{
    const char *rank = getenv("RANK"), *size = getenv("WORLD_SIZE");
    char group[64];

    snprintf(group, sizeof group, "%s", name);
    if (argc == 3 && !strcmp(argv[1], "--ranks")) {
        snprintf(group, sizeof group, "%s %d", name, (int)getpid());
        ret->size = atoi(argv[2]);
        for (ret->rank = 0; ret->rank < ret->size; ret->rank++)
            if (fork() == 0)
                break;
        if (ret->rank == ret->size)
            example_wait(ret->size);
    } else if (argc == 1 && rank && size) {
        ret->rank = atoi(rank);
        ret->size = atoi(size);
    } else {
        fprintf(stderr, "usage: %s --ranks N, or RANK and WORLD_SIZE in the environment\n",
                argv[0]);
        exit(2);
    }
    TRY(commd_connect(NULL, &ret->context));
    TRY(commd_group_join(ret->context, group, ret->rank, ret->size, 0, &ret->group));
}

/* Leaves the group and disconnects. */
static inline void example_end(struct example *me)
{
    commd_disconnect(me->context);
}

#endif
