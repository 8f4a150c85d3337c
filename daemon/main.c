/* main.c - the command line of commd, and what a process has to set up before it is one. */
#include "config.h"

#include <getopt.h>
#include <signal.h>
#include <stdio.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include "daemon/daemon.h"
#include "daemon/process/keeper.h"
#include "daemon/process/log.h"
#include "daemon/process/store.h"
#include "daemon/process/user.h"

static const char default_config[] = COMMD_SYSCONFDIR "/commd/commd.yaml";

static const char help[] =
    "Usage: commd [OPTION]...\n"
    "Collective communication for the processes of this node.\n\n"
    "  --config FILE   the configuration (default %s)\n"
    "  --check-config  say what is wrong with the configuration, and exit\n"
    "  --insecure      no cluster key: for trials on loopback only\n"
    "  --user          serve only the user who starts it, on this node, without a configuration;\n"
    "                  leave when idle for a minute\n"
    "  --background    with --user: print the daemon's pid when it serves, and return\n"
    "  --keep          start it again when it dies, for places where systemd does not do that\n"
    "  --launcher SOCKET  let commd-engine --launcher, which listens there under another user,\n"
    "                  start the engine\n"
    "  --gpu-launcher SOCKET  the same for commd-gpu\n"
    "  --idle-exit S   leave when there was no client for S seconds\n"
    "  --version       print the version, and exit\n"
    "  --help          print this text, and exit\n\n"
    "Exit codes: 0 ended as asked, 1 internal error, 64 usage, 77 key or permission,\n"
    "78 configuration.\n";

struct daemon_options {
    const char *config, *launcher, *gpu_launcher, *idle;
    bool check, insecure, user, background, keep;
    uint64_t idle_ms;
};

static bool parse_seconds(const char *text, uint64_t *ret_ms)
{
    char *end;
    double s = strtod(text, &end);

    if (end == text || *end || !(s >= 0.001) || s > 1e9)
        return false;
    *ret_ms = (uint64_t)(s * 1000);
    return true;
}

static int usage_error(const char *format, const char *word)
{
    fputs("commd: ", stderr);
    fprintf(stderr, format, word);
    fputs("\nTry \"commd --help\".\n", stderr);
    return EXIT_USAGE_;
}

/* Refuses options that exclude each other. */
static int check_options(const struct daemon_options *o)
{
    if (o->user && (o->config || o->check || o->insecure || o->launcher || o->gpu_launcher))
        return usage_error("%s has no configuration, and no other nodes", "--user");
    if (o->background && !o->user)
        return usage_error("%s goes with --user only: a service stays in the foreground",
                           "--background");
    return 0;
}

/* 0: go on; else exit with *ret_exit. */
static int parse_words(int argc, char **argv, struct daemon_options *ret_options, int *ret_exit)
{
    enum {
        OPT_CONFIG = 1,
        OPT_CHECK,
        OPT_INSECURE,
        OPT_USER,
        OPT_BACKGROUND,
        OPT_KEEP,
        OPT_IDLE,
        OPT_LAUNCHER,
        OPT_GPU_LAUNCHER,
        OPT_VERSION,
        OPT_HELP
    };
    static const struct option longs[] = {
        {"config", required_argument, NULL, OPT_CONFIG},
        {"check-config", no_argument, NULL, OPT_CHECK},
        {"insecure", no_argument, NULL, OPT_INSECURE},
        {"user", no_argument, NULL, OPT_USER},
        {"background", no_argument, NULL, OPT_BACKGROUND},
        {"keep", no_argument, NULL, OPT_KEEP},
        {"launcher", required_argument, NULL, OPT_LAUNCHER},
        {"gpu-launcher", required_argument, NULL, OPT_GPU_LAUNCHER},
        {"idle-exit", required_argument, NULL, OPT_IDLE},
        {"version", no_argument, NULL, OPT_VERSION},
        {"help", no_argument, NULL, OPT_HELP},
        {NULL, 0, NULL, 0},
    };
    struct daemon_options o = {.config = NULL};
    int c;

    while ((c = getopt_long(argc, argv, "", longs, NULL)) != -1) {
        switch (c) {
        case OPT_CONFIG:
            o.config = optarg;
            break;
        case OPT_CHECK:
            o.check = true;
            break;
        case OPT_INSECURE:
            o.insecure = true;
            break;
        case OPT_USER:
            o.user = true;
            break;
        case OPT_BACKGROUND:
            o.background = o.keep = true;
            break;
        case OPT_KEEP:
            o.keep = true;
            break;
        case OPT_LAUNCHER:
            o.launcher = optarg;
            break;
        case OPT_GPU_LAUNCHER:
            o.gpu_launcher = optarg;
            break;
        case OPT_IDLE:
            o.idle = optarg;
            if (parse_seconds(optarg, &o.idle_ms))
                break;
            *ret_exit = usage_error("--idle-exit %s: not a number of seconds above 0", optarg);
            return 1;
        case OPT_VERSION:
            puts("commd " COMMD_BUILD_VERSION);
            *ret_exit = 0;
            return 1;
        case OPT_HELP:
            printf(help, default_config);
            *ret_exit = 0;
            return 1;
        default: /* getopt has said what */
            fputs("Try \"commd --help\".\n", stderr);
            *ret_exit = EXIT_USAGE_;
            return 1;
        }
    }
    if (optind < argc) {
        *ret_exit = usage_error("unexpected argument \"%s\"", argv[optind]);
        return 1;
    }
    *ret_exit = check_options(&o);
    if (*ret_exit)
        return 1;
    if (!o.config)
        o.config = default_config;
    if (o.user && !o.idle_ms)
        o.idle_ms = USER_IDLE_MS;
    *ret_options = o;
    return 0;
}

static int load_conf(struct daemon *d, const struct daemon_options *o,
                     const struct user_daemon *user)
{
    char *error = NULL;
    int r;

    if (!o->user)
        snprintf(d->config_file, sizeof(d->config_file), "%s", o->config);
    r = o->user ? user_conf(user, &d->conf, &error)
                : conf_load(o->config, NULL, 0, &d->conf, &error);
    if (!r)
        return 0;
    fprintf(stderr, "%s\n", error ? error : "commd: out of memory");
    free(error);
    return r == -EACCES || r == -EPERM ? EXIT_PERMISSION
           : r == -ENOMEM              ? EXIT_INTERNAL
                                       : EXIT_CONFIG;
}

static void process_setup(void)
{
    struct rlimit limit;

    signal(SIGPIPE, SIG_IGN); /* OpenSSL writes without MSG_NOSIGNAL */
    signal(SIGXFSZ, SIG_IGN); /* a log that has reached RLIMIT_FSIZE is no reason to die */
    umask(0022);
    /* Each client costs a socket and a pidfd. */
    if (getrlimit(RLIMIT_NOFILE, &limit) == 0 && limit.rlim_cur < limit.rlim_max) {
        limit.rlim_cur = limit.rlim_max;
        setrlimit(RLIMIT_NOFILE, &limit);
    }
    /* The kernel may have cleared this when it started commd under another user. A core file and
     * gdb find bugs in the field. daemon_prepare() clears it where there is a key. */
    prctl(PR_SET_DUMPABLE, 1);
}

/* From the configuration to the end. */
static int serve_until_end(struct daemon *d, const struct daemon_options *o,
                           struct user_daemon *user)
{
    int r = load_conf(d, o, user);

    if (r)
        return r;
    log_init("commd", d->conf->log_level);
    d->insecure = o->insecure;
    d->launcher = o->launcher;
    d->gpu_launcher = o->gpu_launcher;
    d->idle_ms = o->idle_ms;
    r = daemon_prepare(d);
    if (r)
        return r;
    if (o->check) {
        printf("%s: ok\n", o->config);
        return 0;
    }
    r = daemon_start(d);
    if (r == 0) {
        store_drop_rest();
        r = user_ready(user);
    }
    if (r)
        return r;
    loop_run(d);
    return d->exit_code;
}

/* The process that starts commd, and starts it again: commd's command line is that of the keeper,
 * without what makes it one. */
static int run_keeper(const struct daemon_options *o, struct user_daemon *user)
{
    const struct {
        const char *name, *value;
        bool given;
    } options[] = {
        {"--config", o->config, !o->user},
        {"--insecure", NULL, o->insecure},
        {"--user", NULL, o->user},
        {"--launcher", o->launcher, o->launcher},
        {"--gpu-launcher", o->gpu_launcher, o->gpu_launcher},
        {"--idle-exit", o->idle, o->idle},
    };
    const char *argv[2 + 2 * ARRAY_LEN(options)] = {"commd"};
    struct keeper_config config = {.argv = (char *const *)argv, .arg = user};
    unsigned n = 1;
    int r = o->user ? user_keep(user, o->background) : 0;

    if (r)
        return r;
    for (unsigned i = 0; i < ARRAY_LEN(options); i++) {
        if (options[i].given)
            argv[n++] = options[i].name;
        if (options[i].given && options[i].value)
            argv[n++] = options[i].value;
    }
    config.lock = user->lock;
    config.log = user->log;
    config.serves = user_kept_serves;
    return keeper_run(&config);
}

int main(int argc, char **argv)
{
    struct user_daemon user = USER_NONE;
    struct daemon d = {0};
    struct daemon_options options;
    int r;

    if (parse_words(argc, argv, &options, &r))
        return r;
    if (options.keep && !options.check) {
        r = run_keeper(&options, &user);
        user_fini(&user);
        return r;
    }
    store_begin();
    r = options.user ? user_begin(&user) : 0;
    process_setup();
    if (!r)
        r = serve_until_end(&d, &options, &user);
    if (r == EXIT_INTERNAL && takeover_leaves(&d))
        _exit(r); /* another one is started, and finds all as after a SIGKILL */
    daemon_fini(&d);
    user_fini(&user);
    store_end();
    return r;
}
