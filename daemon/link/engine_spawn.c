/* engine_spawn.c - starting commd-engine or commd-gpu: by fork and exec (shm/launch/engine_exec.c),
 * or by a launcher that runs under another user (transport/process/launcher.c). Either way one end
 * of a socket pair becomes the program's control socket, and that of another pair its line. The
 * program ends when the line does (transport/process/control.c).
 */
#include "daemon/link/engine_spawn.h"
#include "daemon/core/core.h"
#include "shm/util/fds.h"

#include <fcntl.h>
#include <libgen.h>
#include <signal.h>
#include <stdio.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <sys/wait.h>

/* ---- which ----------------------------------------------------------------------------------- */

/* The path of program @name. @env: the variable that may name it; @set: the configuration's path;
 * @given: that path is not the default. */
static void program_path(const char *name, const char *env, const char *set, bool given,
                         char ret_path[CONF_PATH_MAX])
{
    /* In a build tree: of commd as it is linked, and as libtool keeps it in .libs. An installed one
     * that happens to lie in a build tree must not take that tree's, which may be newer. */
    static const char *const beside[] = {"../transport/", ""}, *const below[] = {
                                                                   "../../transport/"};
    const char *const *try = beside;
    unsigned ntry = ARRAY_LEN(beside);
    char exe[CONF_PATH_MAX];
    ssize_t n;

    snprintf(ret_path, CONF_PATH_MAX, "%s", env && *env ? env : set);
    if ((env && *env) || given)
        return;
    n = readlink("/proc/self/exe", exe, sizeof(exe) - 1);
    if (n <= 0)
        return;
    exe[n] = '\0';
    dirname(exe);
    if (strlen(exe) > 6 && !strcmp(exe + strlen(exe) - 6, "/.libs")) {
        try = below;
        ntry = ARRAY_LEN(below);
    }
    for (unsigned i = 0; i < ntry; i++) {
        char path[CONF_PATH_MAX];

        if (snprintf(path, sizeof(path), "%s/%s%s", exe, try[i], name) < (int)sizeof(path) &&
            access(path, X_OK) == 0) {
            snprintf(ret_path, CONF_PATH_MAX, "%s", path);
            return;
        }
    }
}

/* @words: NULL at the end. */
static void program_words(struct program *program, const char *const *words)
{
    size_t used = 0;

    for (unsigned i = 0; words[i]; i++) {
        size_t len = strlen(words[i]) + 1;

        if (i == LAUNCH_ARGS || len > sizeof(program->words) - used)
            return;
        memcpy(program->words + used, words[i], len);
        used += len;
        program->nwords = i + 1;
    }
    program->len = used;
}

static const char *level_word(const struct conf *conf)
{
    static const char *const levels[] = {"error", "warn", "info", "debug"};

    return levels[conf->log_level];
}

static const char control_fd[] = {'0' + ENGINE_FD, '\0'};

void program_engine(const struct conf *conf, const char *device, struct program *ret_program)
{
    char channels[8], mend_ms[24];
    /* clang-format off */
    const char *const words[] = {
        "commd-engine",
        "--fd", control_fd,
        "--device", device,
        "--fabric", conf_fabric(conf),
        "--tls", conf->ucx_tls,
        "--ports", conf->port_range,
        "--channels", channels,
        "--congestion", conf->congestion,
        "--encryption", conf->encryption,
        "--encryption-threads", conf->encryption_threads,
        "--trusted", conf->trusted_network ? "yes" : "no",
        "--mend-ms", mend_ms,
        "--node", conf->node,
        LAUNCH_LOG, level_word(conf),
        NULL
    };
    /* clang-format on */

    *ret_program = (struct program){.env = engine_env};
    program_path("commd-engine", getenv("COMMD_ENGINE"), conf->engine,
                 conf_is_given(conf, "transport.engine"), ret_program->path);
    snprintf(channels, sizeof(channels), "%u", conf->channels);
    snprintf(mend_ms, sizeof(mend_ms), "%llu", (unsigned long long)conf->node_timeout_ms);
    program_words(ret_program, words);
}

void program_gpu(const struct conf *conf, struct program *ret_program)
{
    char part[24], timeout[24];
    /* clang-format off */
    const char *const words[] = {
        "commd-gpu",
        "--fd", control_fd,
        "--node", conf->node,
        "--socket", conf->socket,
        "--cuda", conf->cuda_library[0] ? conf->cuda_library : "libcuda.so.1",
        "--nccl", conf->nccl_library[0] ? conf->nccl_library : "libnccl.so.2",
        "--nccl-env", conf->nccl_env,
        "--host-id", conf->nodes_share_gpus ? conf->node : "",
        "--part", part,
        "--timeout", timeout,
        "--landlock", conf->gpu_landlock ? "yes" : "no",
        LAUNCH_LOG, level_word(conf),
        NULL
    };
    /* clang-format on */

    *ret_program = (struct program){.env = gpu_env};
    program_path("commd-gpu", getenv("COMMD_GPU"), conf->gpu_program,
                 conf_is_given(conf, "gpu.program"), ret_program->path);
    snprintf(part, sizeof(part), "%u", conf->gpu_part);
    snprintf(timeout, sizeof(timeout), "%llu", (unsigned long long)conf->gpu_timeout_ms);
    program_words(ret_program, words);
}

_Static_assert(CORE_SETTINGS_SHARED == LAUNCH_SHARED, "the same bits");

uint64_t program_settings(const struct program *program)
{
    const char *word = program->words, *end = program->words + program->len, *before = word;
    uint64_t settings = LAUNCH_NO_SETTINGS;

    for (; program->len && (word += strlen(word) + 1) < end && strcmp(word, LAUNCH_LOG);
         before = word)
        settings = launch_settings(settings, before, word);
    return settings;
}

/* ---- sockets --------------------------------------------------------------------------------- */

/* A pair of sockets: ours does not block. */
static int socket_pair(int type, int *ret_ours, int *ret_theirs)
{
    _cleanup_(close_fdp) int ours = -1;
    int pair[2];

    if (socketpair(AF_UNIX, type | SOCK_CLOEXEC, 0, pair))
        return -errno;
    ours = pair[0];
    *ret_theirs = pair[1];
    if (fcntl(ours, F_SETFL, O_NONBLOCK))
        return -errno;
    *ret_ours = steal_fd(&ours);
    return 0;
}

static void fds_fini(struct engine_fds *fds)
{
    close_fdp(&fds->sock);
    close_fdp(&fds->line);
    close_fdp(&fds->pidfd);
    close_fdp(&fds->keeper);
}

/* The sockets of a new process, and the other ends of them. */
static int pairs(struct engine_fds *ours, int *ret_sock, int *ret_line)
{
    int r = socket_pair(SOCK_STREAM, &ours->sock, ret_sock);

    return r ? r : socket_pair(SOCK_SEQPACKET, &ours->line, ret_line);
}

static int send_fds(int to, const void *bytes, size_t len, const int *fds, unsigned nfds)
{
    ssize_t n = fds_send(to, bytes, len, fds, nfds, MSG_DONTWAIT);

    return n < 0 ? (int)n : 0;
}

int engine_resume(int line, int *ret_sock)
{
    _cleanup_(close_fdp) int ours = -1, theirs = -1;
    int r = socket_pair(SOCK_STREAM, &ours, &theirs);

    if (r == 0)
        r = send_fds(line, "c", 1, &theirs, 1);
    if (r == 0)
        *ret_sock = steal_fd(&ours);
    return r;
}

/* ---- our own child --------------------------------------------------------------------------- */

int engine_spawn(const struct program *program, int port, bool kept, pid_t *ret_pid,
                 struct engine_fds *ret_fds)
{
    _cleanup_(fds_fini) struct engine_fds ours = {-1, -1, -1, -1};
    _cleanup_(close_fdp) int sock = -1, line = -1;
    _cleanup_(engine_env_freep) char **env = program->env(environ);
    const char *word = program->words;
    char *argv[LAUNCH_ARGS + 1] = {NULL};
    pid_t pid, parent = kept ? 0 : getpid();
    int r;

    if (!env)
        return -ENOMEM;
    if (!program->len)
        return -E2BIG;
    if (access(program->path, X_OK)) /* gives a clear error; exec's exit status does not */
        return -errno;
    r = pairs(&ours, &sock, &line);
    if (r)
        return r;
    for (unsigned i = 0; i < program->nwords; i++, word += strlen(word) + 1)
        argv[i] = (char *)word; /* exec only reads them */
    pid = fork();
    if (pid < 0)
        return -errno;
    if (pid == 0)
        engine_exec(program->path, argv, env, (const int[]){sock, port, line}, parent);
    ours.pidfd = (int)syscall(SYS_pidfd_open, pid, 0);
    if (ours.pidfd < 0) {
        r = -errno;
        kill(pid, SIGKILL); /* not reaped yet, so no other process has the pid */
        waitpid(pid, NULL, 0);
        return r;
    }
    *ret_pid = pid;
    *ret_fds = ours;
    ours = (struct engine_fds){-1, -1, -1, -1};
    return 0;
}

/* ---- by a launcher --------------------------------------------------------------------------- */

static int launcher_connect(const char *launcher, int *ret_fd)
{
    struct sockaddr_un addr = {.sun_family = AF_UNIX};
    _cleanup_(close_fdp) int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);

    if (fd < 0)
        return -errno;
    if (strlen(launcher) >= sizeof(addr.sun_path))
        return -ENAMETOOLONG;
    strcpy(addr.sun_path, launcher);
    if (connect(fd, (const struct sockaddr *)&addr, sizeof(addr)))
        return -errno;
    *ret_fd = steal_fd(&fd);
    return 0;
}

int engine_launch(const struct program *program, int port, const char *launcher,
                  struct engine_fds *ret_fds)
{
    _cleanup_(fds_fini) struct engine_fds ours = {-1, -1, -1, -1};
    _cleanup_(close_fdp) int sock = -1, line = -1;
    int r;

    if (!program->len)
        return -E2BIG;
    r = launcher_connect(launcher, &ours.keeper);
    if (r == 0)
        r = pairs(&ours, &sock, &line);
    if (r == 0)
        r = send_fds(ours.keeper, program->words, program->len, (const int[]){sock, line, port},
                     port < 0 ? 2 : 3);
    if (r)
        return r;
    *ret_fds = ours;
    ours = (struct engine_fds){-1, -1, -1, -1};
    return 0;
}
