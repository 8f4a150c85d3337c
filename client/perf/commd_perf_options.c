/* commd_perf_options.c - the command line, in the manner of nccl-tests, and the environment of
 * the launchers. Everything that can be wrong is said here, before a process is started. */
#include <getopt.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <time.h>

#include "client/perf/commd_perf.h"
#include "shm/model/dtype.h"
#include "shm/util/hash.h"

struct name {
    const char *name;
    int value;
};

/* What nccl-tests calls them, beside dtype_name(). */
static const struct name dtype_aliases[] = {
    {"int8", COMMD_I8},   {"uint8", COMMD_U8},   {"int32", COMMD_I32}, {"uint32", COMMD_U32},
    {"int64", COMMD_I64}, {"uint64", COMMD_U64}, {"half", COMMD_F16},  {"bfloat16", COMMD_BF16},
    {"float", COMMD_F32}, {"double", COMMD_F64},
};

static const struct name averages[] = {
    {"avg", PERF_AVG}, {"rank0", PERF_RANK0}, {"min", PERF_MIN}, {"max", PERF_MAX},
    {"0", PERF_RANK0}, {"1", PERF_AVG},       {"2", PERF_MIN},   {"3", PERF_MAX},
};

const char *perf_average_name(int average)
{
    for (size_t i = 0; i < ARRAY_LEN(averages); i++)
        if (averages[i].value == average)
            return averages[i].name;
    return "?";
}

static _printf_(1, 2) int wrong_usage(const char *format, ...)
{
    va_list ap;

    va_start(ap, format);
    fputs("commd-perf: ", stderr);
    vfprintf(stderr, format, ap);
    fputs("\nTry: commd-perf --help\n", stderr);
    va_end(ap);
    return PERF_USAGE;
}

/* One of @own, names by number, or of @more. */
static int parse_name(const char *(*own)(unsigned), unsigned n_own, const struct name *more,
                      size_t n_more, const char *what, const char *text, int *ret_value)
{
    for (unsigned i = 0; i < n_own; i++) {
        if (!strcmp(own(i), text)) {
            *ret_value = (int)i;
            return 0;
        }
    }
    for (size_t i = 0; i < n_more; i++) {
        if (!strcmp(more[i].name, text)) {
            *ret_value = more[i].value;
            return 0;
        }
    }
    fprintf(stderr, "commd-perf: %s: no such %s (", text, what);
    for (unsigned i = 0; i < n_own; i++)
        fprintf(stderr, "%s%s", i ? ", " : "", own(i));
    for (size_t i = 0; i < n_more; i++)
        fprintf(stderr, "%s%s", n_own || i ? ", " : "", more[i].name);
    fputs(")\nTry: commd-perf --help\n", stderr);
    return PERF_USAGE;
}

static int parse_coll(const char *text, int *ret_coll)
{
    if (!perf_coll_find(text, ret_coll))
        return 0;
    fprintf(stderr, "commd-perf: %s: no such collective (", text);
    perf_coll_names(stderr);
    fputs(")\nTry: commd-perf --help\n", stderr);
    return PERF_USAGE;
}

/* "8", "64K", "2M", "1G"; a trailing B or iB is fine. */
static int parse_bytes(const char *option, const char *text, size_t *ret_bytes)
{
    static const char suffixes[] = "KMG";
    unsigned long long v;
    const char *at;
    char *end;
    int shift = 0;

    errno = 0;
    v = strtoull(text, &end, 10);
    if (end == text || errno || text[0] == '-' || v == 0)
        return wrong_usage("--%s %s: not a size above 0, like 8, 64K, 2M, 1G", option, text);
    at = *end ? strchr(suffixes, *end & ~0x20) : NULL;
    if (at && *at) {
        shift = 10 * (int)(at - suffixes + 1);
        end++;
        if (*end == 'i' && end[1] == 'B')
            end++;
    }
    if (*end == 'B')
        end++;
    if (*end || v > (SIZE_MAX >> 1) >> shift)
        return wrong_usage("--%s %s: not a size above 0, like 8, 64K, 2M, 1G", option, text);
    *ret_bytes = (size_t)v << shift;
    return 0;
}

/* Cuts @text in place. */
static int parse_nodes(char *text, struct perf *p)
{
    char *save = NULL;

    p->nnodes = 0;
    for (char *s = strtok_r(text, ",", &save); s; s = strtok_r(NULL, ",", &save)) {
        if (p->nnodes == PERF_MAX_NODES)
            return wrong_usage("--nodes: at most %d sockets", PERF_MAX_NODES);
        p->sockets[p->nnodes++] = s;
    }
    return p->nnodes ? 0 : wrong_usage("--nodes: no socket given");
}

/* ---- the environment --------------------------------------------------------------------- */

static bool env_int(const char *name, int *ret_value)
{
    const char *text = getenv(name);
    char *end;
    long v;

    if (!text || !*text)
        return false;
    v = strtol(text, &end, 10);
    if (*end || v < 0 || v > INT_MAX)
        return false;
    *ret_value = (int)v;
    return true;
}

/* Rank, size, and what tells one job of this launcher from another. */
static const struct launcher {
    const char *rank, *size, *job[2];
} launchers[] = {
    {"RANK", "WORLD_SIZE", {"TORCHELASTIC_RUN_ID", "MASTER_PORT"}},
    {"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", {"PMIX_NAMESPACE", "OMPI_MCA_orte_hnp_uri"}},
    {"PMI_RANK", "PMI_SIZE", {"PMI_JOBID", "HYDRA_LAUNCHER_ID"}},
    {"SLURM_PROCID", "SLURM_NTASKS", {"SLURM_JOB_ID", "SLURM_STEP_ID"}},
};

/* A group name has room for 255 bytes, a job's name may be longer. */
static uint64_t hash_env(uint64_t before, const char *name)
{
    const char *value = getenv(name);

    return value ? hash_text(before, value) : before;
}

static void from_launcher(struct perf *p)
{
    for (size_t i = 0; i < ARRAY_LEN(launchers) && !p->launched; i++) {
        const struct launcher *l = &launchers[i];
        uint64_t job;

        p->launched = env_int(l->rank, &p->rank) && env_int(l->size, &p->size) && p->rank < p->size;
        if (!p->launched)
            continue;
        job = hash_env(hash_env(HASH_BEGIN, l->job[0]), l->job[1]);
        if (!p->group[0])
            snprintf(p->group, sizeof(p->group), "commd-perf-%016llx", (unsigned long long)job);
    }
}

static void name_group(struct perf *p)
{
    struct timespec ts;

    if (p->group[0])
        return;
    clock_gettime(CLOCK_REALTIME, &ts);
    snprintf(p->group, sizeof(p->group), "commd-perf-%d-%llx", (int)getpid(),
             (unsigned long long)ts.tv_sec * 1000000000 + (unsigned long long)ts.tv_nsec);
}

/* ---- options ----------------------------------------------------------------------------- */

enum kind {
    BYTES,
    NUMBER,
    FLAG,
    TEXT,
    EITHER,
    DTYPE,
    REDOP,
    AVERAGE,
    NODES,
    NAME,
    VERSION_ASKED,
    HELP
};

/* clang-format off */
static const struct known {
    const char *name, *arg; /* arg NULL: it takes none */
    char letter;            /* 0: none */
    enum kind kind;
    const char *help;
    size_t at;              /* in struct perf */
    int least, most;        /* of a number; most 0: any */
    const char *no, *yes;   /* of EITHER */
} known[] = {
#define AT(field_) .at = offsetof(struct perf, field_)
    {"minbytes", "MIN", 'b', BYTES, "smallest size in bytes, with K, M, G (default 8)",
     AT(min_bytes)},
    {"maxbytes", "MAX", 'e', BYTES, "largest size (default 64M)", AT(max_bytes)},
    {"stepfactor", "F", 'f', NUMBER, "from size to size (default 2)", AT(factor), 2},
    {"stepbytes", "STEP", 'i', BYTES, "instead of a factor: bytes from size to size", AT(step)},
    {"iters", "N", 'n', NUMBER,
     "iterations per size (default 2000 below 64K, 50 to 8M, 12 above)", AT(iterations), 1},
    {"warmup_iters", "N", 'w', NUMBER, "iterations before those (default 3)", AT(warmup)},
    {"warmup-time", "MS", 0, NUMBER,
     "more of those until so many milliseconds are over (default 0)", AT(warmup_ms)},
    {"time-limit", "MS", 0, NUMBER,
     "fewer iterations of a size if they take longer (default 0: no limit)", AT(limit_ms)},
    {"datatype", "TYPE", 'd', DTYPE, "(default f32)", AT(dtype)},
    {"op", "OP", 'o', REDOP, "(default sum)", AT(redop)},
    {"root", "ROOT", 'r', NUMBER, "rank that broadcasts, gathers, ... (default 0)", AT(root)},
    {"check", "0|1", 'c', NUMBER, "check every result (default 1)", AT(check)},
    {"average", "HOW", 'a', AVERAGE,
     "what an iteration took over the ranks: avg (default), rank0, min, max", AT(average)},
    {"async", NULL, 0, FLAG, "start, compute for as long, wait: how much was hidden?", AT(async)},
    {"registered", NULL, 0, FLAG,
     "in memory of commd_alloc(), where large operations need no copies", AT(registered)},
    {"device", "cpu|cuda", 0, EITHER, "where the buffers are (default cpu)", AT(on_gpu),
     .no = "cpu", .yes = "cuda"},
    {"queue", "N", 0, NUMBER,
     "on a GPU: wait after so many operations (default 1; more: -c 0)", AT(queue), 1},
    {"groups", "N", 0, NUMBER, "in so many groups at once (default 1)", AT(groups), 1,
     PERF_MAX_GROUPS},
    {"ranks", "R", 0, NUMBER, "processes to start on each node (default 2)", AT(per_node), 1},
    {"nodes", "S,S", 0, NODES, "sockets of the nodes (default: the one of this node)",
     .at = 0},
    {"placement", "HOW", 0, EITHER,
     "block: ranks node by node (default); cyclic: one by one", AT(cyclic),
     .no = "block", .yes = "cyclic"},
    {"name", "NAME", 0, NAME, "of the group, when several runs are started by one launcher",
     AT(group)},
    {"json", "FILE", 0, TEXT, "write the result there as well", AT(json)},
    {"turns", "DIR", 0, TEXT, "measure what rank R is told through DIR/R: see the man page",
     AT(turns)},
    {"version", NULL, 0, VERSION_ASKED, "print the version", .at = 0},
    {"help", NULL, 'h', HELP, "print this text", .at = 0},
};
/* clang-format on */

static void print_names(const char *(*name)(unsigned), unsigned n)
{
    for (unsigned i = 0; i < n; i++)
        printf("%s ", name(i));
}

static void print_options(void)
{
    puts("Usage: commd-perf COLLECTIVE [OPTIONS]\n"
         "Measures and checks a collective; COLLECTIVE is one of:");
    perf_coll_names(stdout);
    puts("\n");
    for (const struct known *o = known; o < known + ARRAY_LEN(known); o++) {
        char left[40] = "";

        if (o->letter)
            snprintf(left, sizeof(left), "-%c, ", o->letter);
        snprintf(left + strlen(left), sizeof(left) - strlen(left), "--%s %s", o->name,
                 o->arg ? o->arg : "");
        printf("  %-21s ", left);
        if (o->kind == DTYPE)
            print_names(dtype_name, DTYPE_COUNT);
        if (o->kind == REDOP)
            print_names(redop_name, REDOP_COUNT);
        puts(o->help);
    }
    puts("\nUnder torchrun, srun or mpirun: one rank of theirs, unless --ranks or --nodes is "
         "given.\n"
         "Exit codes: 0 fine, 1 failed or wrong results, 64 usage, 130 interrupted.");
}

static int take_number(const struct known *o, int *ret_value)
{
    char *end;
    long v;

    errno = 0;
    v = strtol(optarg, &end, 10);
    if (end == optarg || *end || errno || v < o->least || v > INT_MAX)
        return wrong_usage("--%s %s: not a number of at least %d", o->name, optarg, o->least);
    if (o->most && v > o->most)
        return wrong_usage("--%s %ld: at most %d", o->name, v, o->most);
    *ret_value = (int)v;
    return 0;
}

/* Returns 0, or an exit code above. */
static int take_perf_option(const struct known *o, struct perf *p)
{
    void *field = (char *)p + o->at;

    switch (o->kind) {
    case BYTES:
        return parse_bytes(o->name, optarg, field);
    case NUMBER:
        return take_number(o, field);
    case FLAG:
        *(bool *)field = true;
        return 0;
    case TEXT:
        *(const char **)field = optarg;
        return 0;
    case EITHER:
        *(bool *)field = !strcmp(optarg, o->yes);
        return *(bool *)field || !strcmp(optarg, o->no)
                   ? 0
                   : wrong_usage("--%s %s: %s or %s", o->name, optarg, o->no, o->yes);
    case DTYPE:
        return parse_name(dtype_name, DTYPE_COUNT, dtype_aliases, ARRAY_LEN(dtype_aliases),
                          "data type", optarg, field);
    case REDOP:
        return parse_name(redop_name, REDOP_COUNT, NULL, 0, "operator", optarg, field);
    case AVERAGE:
        return parse_name(NULL, 0, averages, ARRAY_LEN(averages), "average", optarg, field);
    case NODES:
        return parse_nodes(optarg, p);
    case NAME:
        if (!*optarg || strlen(optarg) >= sizeof(p->group))
            return wrong_usage("--name: 1 to %zu bytes", sizeof(p->group) - 1);
        strcpy(p->group, optarg);
        return 0;
    case VERSION_ASKED:
    case HELP:
        break;
    }
    return 0;
}

static bool was_given(const bool given[ARRAY_LEN(known)], const char *name)
{
    unsigned i = 0;

    while (strcmp(known[i].name, name))
        i++;
    return given[i];
}

static int perf_check_options(struct perf *p, const bool given[ARRAY_LEN(known)])
{
    if (p->min_bytes > p->max_bytes && was_given(given, "maxbytes"))
        return wrong_usage("-b %zu is larger than -e %zu", p->min_bytes, p->max_bytes);
    if (p->step && was_given(given, "stepfactor"))
        return wrong_usage("-f and -i: only one of them");
    if (perf_reduces(p->coll) && !redop_defined((unsigned)p->dtype, (unsigned)p->redop))
        return wrong_usage("-d %s -o %s: not defined", dtype_name((unsigned)p->dtype),
                           redop_name((unsigned)p->redop));
    if (p->coll == PERF_PINGPONG && (p->async || p->groups > 1))
        return wrong_usage("pingpong: neither --async nor --groups");
    if (p->on_gpu && p->registered)
        return wrong_usage("--registered is memory of the host, --device cuda is not");
    if (p->queue > 1 && (!p->on_gpu || p->check || p->async))
        return wrong_usage("--queue %d: only with --device cuda -c 0, and without --async",
                           p->queue);
    p->max_bytes = MAX(p->min_bytes, p->max_bytes);
    if (p->step)
        p->factor = 0;
    if (!was_given(given, "ranks") && !was_given(given, "nodes"))
        from_launcher(p);
    if (!p->launched)
        p->size = p->per_node * p->nnodes;
    if (!p->launched && (p->per_node > PERF_MAX_RANKS || p->size > PERF_MAX_RANKS))
        return wrong_usage("%d ranks on each of %d nodes: at most %d in all", p->per_node,
                           p->nnodes, PERF_MAX_RANKS);
    if (p->root >= p->size)
        return wrong_usage("-r %d: there are ranks 0 to %d", p->root, p->size - 1);
    name_group(p);
    return -1;
}

int perf_parse(int argc, char **argv, struct perf *ret_perf)
{
    struct option longs[ARRAY_LEN(known) + 1] = {0};
    char letters[2 * ARRAY_LEN(known) + 1] = "";
    bool given[ARRAY_LEN(known)] = {false};
    struct perf *p = ret_perf;
    int c, at, r;

    *p = (struct perf){.dtype = COMMD_F32,
                       .redop = COMMD_SUM,
                       .min_bytes = 8,
                       .max_bytes = 64 << 20,
                       .factor = 2,
                       .warmup = 3,
                       .average = PERF_AVG,
                       .check = true,
                       .groups = 1,
                       .queue = 1,
                       .per_node = 2,
                       .nnodes = 1};
    for (unsigned i = 0; i < ARRAY_LEN(known); i++) {
        longs[i] = (struct option){known[i].name, known[i].arg != NULL, NULL, 0};
        if (known[i].letter)
            sprintf(letters + strlen(letters), "%c%s", known[i].letter, known[i].arg ? ":" : "");
    }
    optind = 0; /* glibc: start afresh; turns parse many lines */
    while ((c = getopt_long(argc, argv, letters, longs, &at)) >= 0) {
        if (c == '?') { /* getopt has said what is wrong */
            fputs("Try: commd-perf --help\n", stderr);
            return PERF_USAGE;
        }
        for (int i = 0; c && i < (int)ARRAY_LEN(known); i++)
            if (known[i].letter == c)
                at = i;
        given[at] = true;
        if (known[at].kind == HELP)
            print_options();
        if (known[at].kind == VERSION_ASKED)
            puts("commd-perf " PERF_VERSION);
        if (known[at].kind == HELP || known[at].kind == VERSION_ASKED)
            return PERF_OK;
        r = take_perf_option(&known[at], p);
        if (r)
            return r;
    }
    if (argc - optind != 1)
        return wrong_usage(argc == optind ? "which collective?" : "one collective at a time");
    if (parse_coll(argv[optind], &p->coll))
        return PERF_USAGE;
    return perf_check_options(p, given);
}
