/* context.c - what every call asks first: was this process forked, and when does its limit end?
 *
 * getpid() would tell of a fork too, but is a system call: it takes half as long as a small
 * all_reduce. So forks are counted (pthread_atfork() in api/api.c), and a context knows in which
 * process it was made. The version stands here because lower layers name it in errors, too. */
#include "client/lib/context/context.h"

#include "config.h"

PUBLIC const char *commd_version(void)
{
    return PACKAGE_VERSION;
}

/* Forks between this process and the first that used the library. */
static unsigned generation;

unsigned fork_generation(void)
{
    return generation;
}

void fork_counted(void)
{
    generation++;
}

int usable(const struct commd_context *ctx, const char *op)
{
    if (likely(ctx->generation == generation))
        return 0;
    return error_set(error_mine(), COMMD_E_FORKED, op,
                     "this process was forked from the one (pid %d) that connected; connect anew "
                     "in the child",
                     (int)ctx->pid);
}

int64_t deadline_in(int64_t timeout_ms)
{
    int64_t deadline;

    if (timeout_ms < 0 || __builtin_add_overflow((int64_t)now_ms(), timeout_ms, &deadline))
        return -1;
    return deadline;
}
