/* oracle.c - runs random programs of collectives and compares with a serial reference, exactly.
 *
 * A program is a function of its seed. What fails is printed with the command that runs it
 * again. */
#include "tests/oracle/oracle.h"

#include <getopt.h>
#include <malloc.h>
#include <stdio.h>

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
enum { POLLED_OPS = 3000, THREAD_OPS = 600, GPU_OPS = 200 };
#else
enum { POLLED_OPS = 20000, THREAD_OPS = 4000, GPU_OPS = 1500 };
#endif

static const char usage[] =
    "usage: oracle [--ops N] [--seed S] [--threads] [--gpu] [--elements N] [--kernels NAME] "
    "[--verbose]\n"
    "  --ops N         operations, at least (one program: --ops 1)\n"
    "  --seed S        of the first program (default 1); the next one has S + 1\n"
    "  --gpu           buffers on a GPU, that of tests/fakecuda; implies --threads\n"
    "  --threads       a thread for each rank, instead of polling all in a random order\n"
    "  --elements N    largest buffer (default 4194304)\n"
    "  --kernels NAME  avx512, avx2 or baseline (default: any)\n"
    "  --verbose       print each program\n";

static struct knobs knobs = {.most = MAX_ELEMENTS};

void failed(const struct program *p)
{
    static pthread_mutex_t once = PTHREAD_MUTEX_INITIALIZER;

    pthread_mutex_lock(&once); /* never given back: the first is the one that speaks */
    if (!knobs.verbose)
        program_print(p);
    fprintf(stderr, "again: tests/oracle/oracle --seed %llu --ops 1 --elements %zu%s%s%s\n",
            (unsigned long long)p->seed, knobs.most,
            knobs.gpu       ? " --gpu"
            : knobs.threads ? " --threads"
                            : "",
            knobs.kernels ? " --kernels " : "", knobs.kernels ? knobs.kernels : "");
    _exit(1);
}

/* Returns its number of operations. */
static unsigned run_program(uint64_t seed)
{
    static struct program p;

    program_draw(seed, &knobs, &p);
    if (knobs.verbose)
        program_print(&p);
    if (knobs.threads ? play_threads(&p) : play_polled(&p))
        failed(&p);
    program_free(&p);
    return p.nops;
}

static void run_programs(uint64_t seed, uint64_t ops)
{
    uint64_t done = 0, programs = 0;

    while (done < ops)
        done += run_program(seed + programs++);
    printf("%llu operations in %llu programs from seed %llu, %s: all as they should be\n",
           (unsigned long long)done, (unsigned long long)programs, (unsigned long long)seed,
           knobs.gpu       ? "GPU"
           : knobs.threads ? "threads"
                           : "polled");
}

int main(int argc, char **argv)
{
    static const struct option options[] = {
        {"ops", required_argument, NULL, 'o'},      {"seed", required_argument, NULL, 's'},
        {"threads", no_argument, NULL, 't'},        {"gpu", no_argument, NULL, 'g'},
        {"elements", required_argument, NULL, 'e'}, {"kernels", required_argument, NULL, 'k'},
        {"verbose", no_argument, NULL, 'v'},        {0},
    };
    uint64_t seed = 1, ops = 0;
    int opt;

    while ((opt = getopt_long(argc, argv, "", options, NULL)) != -1) {
        switch (opt) {
        case 'o':
            ops = strtoull(optarg, NULL, 0);
            break;
        case 's':
            seed = strtoull(optarg, NULL, 0);
            break;
        case 't':
            knobs.threads = true;
            break;
        case 'g':
            knobs.threads = knobs.gpu = true;
            break;
        case 'e':
            knobs.most =
                MIN(MAX((size_t)strtoull(optarg, NULL, 0), (size_t)1), (size_t)MAX_ELEMENTS);
            break;
        case 'k':
            knobs.kernels = optarg;
            break;
        case 'v':
            knobs.verbose = true;
            break;
        default:
            fputs(usage, stderr);
            return 64;
        }
    }
    /* the same pages again and again instead of new ones from the kernel each time */
    if (knobs.gpu)
        gpu_load();
    mallopt(M_MMAP_THRESHOLD, 1 << 30);
    mallopt(M_TRIM_THRESHOLD, 1 << 30);
    if (!ops)
        ops = knobs.gpu ? GPU_OPS : knobs.threads ? THREAD_OPS : POLLED_OPS;
    run_programs(seed, ops);
    return 0;
}
