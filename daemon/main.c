/* main.c - the command line of commd, and what a process has to set up before it is one. */
#include "config.h"

#include <getopt.h>
#include <signal.h>
#include <stdio.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include "daemon/daemon.h"
#include "daemon/log.h"

static const char default_config[] = COMMD_SYSCONFDIR "/commd/commd.yaml";

static const char help[] =
    "Usage: commd [OPTION]...\n"
    "Collective communication for the processes of this node.\n\n"
    "  --config FILE   the configuration (default %s)\n"
    "  --check-config  say what is wrong with the configuration, and exit\n"
    "  --insecure      no cluster key: for trials on loopback only\n"
    "  --version       print the version, and exit\n"
    "  --help          print this text, and exit\n\n"
    "Exit codes: 0 ended as asked, 1 internal error, 64 usage, 77 key or permission,\n"
    "78 configuration.\n";

struct options {
    const char *config;
    bool check, insecure;
};

/* 0: go on; else exit with *ret_exit. */
static int parse(int argc, char **argv, struct options *ret_options, int *ret_exit)
{
    enum { OPT_CONFIG = 1, OPT_CHECK, OPT_INSECURE, OPT_VERSION, OPT_HELP };
    static const struct option longs[] = {
        {"config", required_argument, NULL, OPT_CONFIG},
        {"check-config", no_argument, NULL, OPT_CHECK},
        {"insecure", no_argument, NULL, OPT_INSECURE},
        {"version", no_argument, NULL, OPT_VERSION},
        {"help", no_argument, NULL, OPT_HELP},
        {NULL, 0, NULL, 0},
    };
    struct options o = {.config = default_config};
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
        case OPT_VERSION:
            puts("commd " PACKAGE_VERSION);
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
        fprintf(stderr, "commd: unexpected argument \"%s\"\nTry \"commd --help\".\n",
                argv[optind]);
        *ret_exit = EXIT_USAGE_;
        return 1;
    }
    *ret_options = o;
    return 0;
}

static int load(struct daemon *d, const char *file)
{
    char *error = NULL;
    int r;

    snprintf(d->config_file, sizeof(d->config_file), "%s", file);
    r = conf_load(file, NULL, 0, &d->conf, &error);
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
    umask(0022);
    /* Each client costs a socket and a pidfd. */
    if (getrlimit(RLIMIT_NOFILE, &limit) == 0 && limit.rlim_cur < limit.rlim_max) {
        limit.rlim_cur = limit.rlim_max;
        setrlimit(RLIMIT_NOFILE, &limit);
    }
    /* Started under another user, the kernel may have cleared it; a core file and gdb are how
     * a bug in the field is found. */
    prctl(PR_SET_DUMPABLE, 1);
}

int main(int argc, char **argv)
{
    struct daemon d = {0};
    struct options options;
    int r;

    if (parse(argc, argv, &options, &r))
        return r;
    process_setup();
    r = load(&d, options.config);
    if (r)
        return r;
    log_init("commd", d.conf->log_level);
    d.insecure = options.insecure;
    r = daemon_prepare(&d);
    if (r == 0 && options.check)
        printf("%s: ok\n", options.config);
    if (r == 0 && !options.check)
        r = daemon_start(&d);
    if (r == 0 && !options.check) {
        loop_run(&d);
        r = d.exit_code;
    }
    daemon_fini(&d);
    return r;
}
