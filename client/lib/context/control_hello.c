/* control_hello.c - what a process says of itself in its hello to commd. */
#include "client/lib/context/context.h"
#include "shm/model/plan.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

/* The command line, for people. commd does not read it from /proc: the kernel would make commd wait
 * for this process's memory. */
static void own_command(char buf[MSG_COMMAND_MAX])
{
    _cleanup_(close_fdp) int fd = open("/proc/self/cmdline", O_RDONLY | O_CLOEXEC);
    ssize_t n = fd < 0 ? 0 : read(fd, buf, MSG_COMMAND_MAX - 1);

    while (n > 0 && !buf[n - 1])
        n--;
    for (ssize_t i = 0; i < n; i++)
        if (!buf[i])
            buf[i] = ' ';
    buf[MAX(n, (ssize_t)0)] = 0;
}

/* torchrun says "none" where it was given no id. */
static void own_run(char buf[MSG_NAME_MAX])
{
    const char *id = getenv("TORCHELASTIC_RUN_ID");

    snprintf(buf, MSG_NAME_MAX, "%s", id && strcmp(id, "none") ? id : "");
}

void control_say_hello(const struct commd_context *ctx, struct msg_client_hello *hello)
{
    *hello = (struct msg_client_hello){
        .version = MSG_VERSION,
        .waits_rank = ctx->waits_rank,
        .waits_size = ctx->waits_size,
        .plans = PLAN_KNOWN,
    };
    snprintf(hello->program, sizeof hello->program, "%.63s", program_invocation_short_name);
    own_command(hello->command);
    own_run(hello->job);
    memcpy(hello->waits_for, ctx->waits_for, sizeof ctx->waits_for);
}
