/* commd_perf_options.c - the command line, in the manner of nccl-tests, and the environment of
 * the launchers. Everything that can be wrong is said here, before a process is started. */
#include <getopt.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <time.h>

#include "client/perf/commd_perf.h"
#include "shm/model/dtype.h"

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

const char *perf_dtype_name(int dtype)
{
    return dtype_name((unsigned)dtype);
}

const char *perf_redop_name(int redop)
{
    return redop_name((unsigned)redop);
}

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

static int parse_int(const char *option, const char *text, int least, int *ret_value)
{
    char *end;
    long v;

    errno = 0;
    v = strtol(text, &end, 10);
    if (end == text || *end || errno || v < least || v > INT_MAX)
        return wrong_usage("%s %s: not a number of at least %d", option, text, least);
    *ret_value = (int)v;
    return 0;
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
static int parse_bytes(char option, const char *text, size_t *ret_bytes)
{
    static const char suffixes[] = "KMG";
    unsigned long long v;
    const char *at;
    char *end;
    int shift = 0;

    errno = 0;
    v = strtoull(text, &end, 10);
    if (end == text || errno || text[0] == '-' || v == 0)
        return wrong_usage("-%c %s: not a size above 0, like 8, 64K, 2M, 1G", option, text);
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
        return wrong_usage("-%c %s: not a size above 0, like 8, 64K, 2M, 1G", option, text);
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

static void print_options(void)
{
    puts("Usage: commd-perf COLLECTIVE [OPTIONS]\n"
         "Measures and checks a collective; COLLECTIVE is one of:");
    perf_coll_names(stdout);
    puts("\n\n"
         "  -b, --minbytes MIN    smallest size in bytes, with K, M, G (default 8)\n"
         "  -e, --maxbytes MAX    largest size (default 64M)\n"
         "  -f, --stepfactor F    from size to size (default 2)\n"
         "  -i, --stepbytes STEP  instead of a factor: bytes from size to size\n"
         "  -n, --iters N         iterations per size (default 2000 below 64K, 50 to 8M, 12 "
         "above)\n"
         "  -w, --warmup_iters N  iterations before those (default 3)\n"
         "  --warmup-time MS      more of those until so many milliseconds are over (default 0)\n"
         "  --time-limit MS       fewer iterations of a size if they take longer (default 0: no "
         "limit)");
    fputs("  -d, --datatype TYPE  ", stdout);
    for (unsigned i = 0; i < DTYPE_COUNT; i++)
        printf(" %s", dtype_name(i));
    fputs("\n                        (default f32)\n  -o, --op OP          ", stdout);
    for (unsigned i = 0; i < REDOP_COUNT; i++)
        printf(" %s", redop_name(i));
    puts(" (default sum)\n"
         "  -r, --root ROOT       rank that broadcasts, gathers, ... (default 0)\n"
         "  -c, --check 0|1       check every result (default 1)\n"
         "  -a, --average HOW     what an iteration took over the ranks: avg (default), rank0, "
         "min, max\n"
         "  --async               start, compute for as long, wait: how much was hidden?\n"
         "  --registered          in memory of commd_alloc(), where large operations need no "
         "copies\n"
         "  --device cpu|cuda     where the buffers are (default cpu)\n"
         "  --queue N             on a GPU: wait after so many operations (default 1; more: -c 0)\n"
         "  --groups N            in so many groups at once (default 1)\n"
         "  --ranks R             processes to start on each node (default 2)\n"
         "  --nodes S,S           sockets of the nodes (default: the one of this node)\n"
         "  --placement HOW       block: ranks node by node (default); cyclic: one by one\n"
         "  --name NAME           of the group, when several runs are started by one launcher\n"
         "  --json FILE           write the result there as well\n"
         "  --turns DIR           measure what rank R is told through DIR/R: see the man page\n"
         "  --version, --help\n\n"
         "Under torchrun, srun or mpirun: one rank of theirs, unless --ranks or --nodes is "
         "given.\n"
         "Exit codes: 0 fine, 1 failed or wrong results, 64 usage, 130 interrupted.");
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

/* FNV-1a: a group name has room for 255 bytes, a job's name may be longer. */
static uint64_t hash_text(uint64_t h, const char *s)
{
    for (; s && *s; s++)
        h = (h ^ (uint8_t)*s) * 0x100000001b3;
    return h;
}

static void from_launcher(struct perf *p)
{
    for (size_t i = 0; i < ARRAY_LEN(launchers) && !p->launched; i++) {
        const struct launcher *l = &launchers[i];
        uint64_t job = 0xcbf29ce484222325;

        p->launched = env_int(l->rank, &p->rank) && env_int(l->size, &p->size) && p->rank < p->size;
        if (!p->launched)
            continue;
        job = hash_text(hash_text(job, getenv(l->job[0])), getenv(l->job[1]));
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

/* ---- all together ------------------------------------------------------------------------ */

struct given {
    bool max, factor, ranks, nodes;
};

static int perf_check_options(struct perf *p, const struct given *given)
{
    if (p->min_bytes > p->max_bytes && given->max)
        return wrong_usage("-b %zu is larger than -e %zu", p->min_bytes, p->max_bytes);
    if (p->step && given->factor)
        return wrong_usage("-f and -i: only one of them");
    if (perf_reduces(p->coll) && !redop_defined((unsigned)p->dtype, (unsigned)p->redop))
        return wrong_usage("-d %s -o %s: not defined", perf_dtype_name(p->dtype),
                           perf_redop_name(p->redop));
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
    if (!given->ranks && !given->nodes)
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

enum {
    O_RANKS = 256,
    O_NODES,
    O_JSON,
    O_NAME,
    O_VERSION,
    O_ASYNC,
    O_REGISTERED,
    O_DEVICE,
    O_QUEUE,
    O_GROUPS,
    O_PLACEMENT,
    O_TURNS,
    O_WARMUP_TIME,
    O_TIME_LIMIT
};

/* @text is @no or @yes. */
static int parse_either(const char *option, const char *text, const char *no, const char *yes,
                        bool *ret_yes)
{
    *ret_yes = !strcmp(text, yes);
    return *ret_yes || !strcmp(text, no) ? 0
                                         : wrong_usage("%s %s: %s or %s", option, text, no, yes);
}

/* Returns 0, or an exit code above. */
static int parse_one(int c, struct perf *p, struct given *given)
{
    int value = 0, r = 0;

    switch (c) {
    case 'b':
        return parse_bytes('b', optarg, &p->min_bytes);
    case 'e':
        given->max = true;
        return parse_bytes('e', optarg, &p->max_bytes);
    case 'f':
        given->factor = true;
        r = parse_int("-f", optarg, 2, &value);
        p->factor = (size_t)value;
        return r;
    case 'i':
        return parse_bytes('i', optarg, &p->step);
    case 'n':
        return parse_int("-n", optarg, 1, &p->iterations);
    case 'w':
        return parse_int("-w", optarg, 0, &p->warmup);
    case 'd':
        return parse_name(dtype_name, DTYPE_COUNT, dtype_aliases, ARRAY_LEN(dtype_aliases),
                          "data type", optarg, &p->dtype);
    case 'o':
        return parse_name(redop_name, REDOP_COUNT, NULL, 0, "operator", optarg, &p->redop);
    case 'r':
        return parse_int("-r", optarg, 0, &p->root);
    case 'c':
        r = parse_int("-c", optarg, 0, &value);
        p->check = value;
        return r;
    case 'a':
        return parse_name(NULL, 0, averages, ARRAY_LEN(averages), "average", optarg, &p->average);
    case O_ASYNC:
        p->async = true;
        return 0;
    case O_REGISTERED:
        p->registered = true;
        return 0;
    case O_DEVICE:
        return parse_either("--device", optarg, "cpu", "cuda", &p->on_gpu);
    case O_QUEUE:
        return parse_int("--queue", optarg, 1, &p->queue);
    case O_GROUPS:
        r = parse_int("--groups", optarg, 1, &p->groups);
        if (!r && p->groups > PERF_MAX_GROUPS)
            return wrong_usage("--groups %d: at most %d", p->groups, PERF_MAX_GROUPS);
        return r;
    case O_PLACEMENT:
        return parse_either("--placement", optarg, "block", "cyclic", &p->cyclic);
    case O_WARMUP_TIME:
        return parse_int("--warmup-time", optarg, 0, &p->warmup_ms);
    case O_TIME_LIMIT:
        return parse_int("--time-limit", optarg, 0, &p->limit_ms);
    case O_TURNS:
        p->turns = optarg;
        return 0;
    case O_RANKS:
        given->ranks = true;
        return parse_int("--ranks", optarg, 1, &p->per_node);
    case O_NODES:
        given->nodes = true;
        return parse_nodes(optarg, p);
    case O_JSON:
        p->json = optarg;
        return 0;
    case O_NAME:
        if (!*optarg || strlen(optarg) >= sizeof(p->group))
            return wrong_usage("--name: 1 to %zu bytes", sizeof(p->group) - 1);
        strcpy(p->group, optarg);
        return 0;
    default: /* getopt has said what is wrong */
        fputs("Try: commd-perf --help\n", stderr);
        return PERF_USAGE;
    }
}

int perf_parse(int argc, char **argv, struct perf *ret_perf)
{
    static const struct option longs[] = {{"minbytes", required_argument, NULL, 'b'},
                                          {"maxbytes", required_argument, NULL, 'e'},
                                          {"stepfactor", required_argument, NULL, 'f'},
                                          {"stepbytes", required_argument, NULL, 'i'},
                                          {"iters", required_argument, NULL, 'n'},
                                          {"warmup_iters", required_argument, NULL, 'w'},
                                          {"warmup-time", required_argument, NULL, O_WARMUP_TIME},
                                          {"time-limit", required_argument, NULL, O_TIME_LIMIT},
                                          {"datatype", required_argument, NULL, 'd'},
                                          {"op", required_argument, NULL, 'o'},
                                          {"root", required_argument, NULL, 'r'},
                                          {"check", required_argument, NULL, 'c'},
                                          {"average", required_argument, NULL, 'a'},
                                          {"async", no_argument, NULL, O_ASYNC},
                                          {"registered", no_argument, NULL, O_REGISTERED},
                                          {"device", required_argument, NULL, O_DEVICE},
                                          {"queue", required_argument, NULL, O_QUEUE},
                                          {"groups", required_argument, NULL, O_GROUPS},
                                          {"ranks", required_argument, NULL, O_RANKS},
                                          {"nodes", required_argument, NULL, O_NODES},
                                          {"placement", required_argument, NULL, O_PLACEMENT},
                                          {"name", required_argument, NULL, O_NAME},
                                          {"json", required_argument, NULL, O_JSON},
                                          {"turns", required_argument, NULL, O_TURNS},
                                          {"version", no_argument, NULL, O_VERSION},
                                          {"help", no_argument, NULL, 'h'},
                                          {NULL, 0, NULL, 0}};
    struct given given = {0};
    struct perf *p = ret_perf;
    int c, r;

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
    optind = 0; /* glibc: start afresh; turns parse many lines */
    while ((c = getopt_long(argc, argv, "b:e:f:i:n:w:d:o:r:c:a:h", longs, NULL)) >= 0) {
        if (c == 'h') {
            print_options();
            return PERF_OK;
        }
        if (c == O_VERSION) {
            puts("commd-perf " PERF_VERSION);
            return PERF_OK;
        }
        r = parse_one(c, p, &given);
        if (r)
            return r;
    }
    if (argc - optind != 1)
        return wrong_usage(argc == optind ? "which collective?" : "one collective at a time");
    if (parse_coll(argv[optind], &p->coll))
        return PERF_USAGE;
    return perf_check_options(p, &given);
}
