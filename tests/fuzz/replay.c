/* replay.c - runs a fuzz target over a corpus, as a plain program.
 *
 *     fuzz_NAME [--tries N [--from K]] [FILE | FOLDER]...
 *
 * Without arguments: tests/fuzz/corpus/NAME below $srcdir, which is how `make check` calls it.
 * Each input is copied to a block of exactly its size, so that the sanitizers see a read past
 * its end. --tries then changes them at random, N times; a try is given by its number, so --from
 * replays from the one that is printed last. A folder that is missing or empty is an error: a test
 * that ran nothing has not passed. Built with -fsanitize=fuzzer instead of this file, the same
 * target explores. */
#include <dirent.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "shm/util/base.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { CHANGES = 8, LONGEST = 1024, TOLD = 10000 };

static unsigned replayed, tries, from;
static struct input {
    uint8_t *data;
    size_t size;
} *inputs; /* owned; what was replayed */

static void fclosep(FILE **f)
{
    if (*f)
        fclose(*f);
}

static void closedirp(DIR **dir)
{
    if (*dir)
        closedir(*dir);
}

static int remember(uint8_t *data, size_t size)
{
    struct input *more = realloc(inputs, replayed * sizeof(*inputs));

    if (!more)
        return -ENOMEM;
    inputs = more;
    inputs[replayed - 1] = (struct input){data, size};
    return 0;
}

static uint64_t dice(uint64_t *state)
{
    *state += UINT64_C(0x9e3779b97f4a7c15); /* splitmix64 */
    uint64_t x = *state;

    x = (x ^ (x >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    x = (x ^ (x >> 27)) * UINT64_C(0x94d049bb133111eb);
    return x ^ (x >> 31);
}

/* One change of the @size bytes at @p, which have room for LONGEST; returns how many they are. */
static size_t change(uint8_t *p, size_t size, uint64_t *state)
{
    size_t at = size ? dice(state) % size : 0, n = 1 + dice(state) % 8;

    switch (dice(state) % 4) {
    case 0: /* a bit */
        if (size)
            p[at] ^= (uint8_t)(1 << dice(state) % 8);
        return size;
    case 1: /* some bytes */
        for (size_t i = at; i < size && i < at + n; i++)
            p[i] = (uint8_t)dice(state);
        return size;
    case 2: /* fewer */
        n = MIN(n, size - at);
        memmove(p + at, p + at + n, size - at - n);
        return size - n;
    default: /* more */
        n = MIN(n, LONGEST - size);
        memmove(p + at + n, p + at, size - at);
        for (size_t i = at; i < at + n; i++)
            p[i] = (uint8_t)dice(state);
        return size + n;
    }
}

static void try_one(unsigned number)
{
    uint64_t state = number;
    const struct input *input = &inputs[dice(&state) % replayed];
    uint8_t text[LONGEST], *data;
    size_t size = MIN(input->size, (size_t)LONGEST);

    memcpy(text, input->data, size);
    for (unsigned i = 1 + dice(&state) % CHANGES; i > 0; i--)
        size = change(text, size, &state);
    data = malloc(size ? size : 1);
    if (!data)
        abort();
    memcpy(data, text, size);
    LLVMFuzzerTestOneInput(data, size);
    free(data);
}

static void try_all(void)
{
    for (unsigned i = from; i - from < tries; i++) {
        if (i % TOLD == 0)
            printf("try %u\n", i);
        fflush(stdout);
        try_one(i);
    }
    for (unsigned i = 0; i < replayed; i++)
        free(inputs[i].data);
    free(inputs);
}

static int replay_file(const char *path)
{
    _cleanup_(fclosep) FILE *f = fopen(path, "re");
    _cleanup_(freep) uint8_t *data = NULL;
    struct stat st;
    size_t size;

    if (!f || fstat(fileno(f), &st) < 0)
        return -errno;
    size = (size_t)st.st_size;
    data = malloc(size ? size : 1);
    if (!data)
        return -ENOMEM;
    if (fread(data, 1, size, f) != size)
        return -EIO;
    printf("%s\n", path); /* the last line names the input that broke it */
    fflush(stdout);
    LLVMFuzzerTestOneInput(data, size);
    replayed++;
    return tries ? remember(steal_ptr(data), size) : 0;
}

static int replay_folder(const char *path)
{
    _cleanup_(closedirp) DIR *dir = opendir(path);
    struct dirent *entry;
    char name[4096];
    int r = 0;

    if (!dir)
        return -errno;
    while (r == 0 && (errno = 0, entry = readdir(dir))) {
        if (entry->d_name[0] == '.')
            continue;
        snprintf(name, sizeof(name), "%s/%s", path, entry->d_name);
        r = replay_file(name);
    }
    return r ? r : -errno;
}

static int replay(const char *path)
{
    struct stat st;
    int r;

    if (stat(path, &st) < 0)
        r = -errno;
    else
        r = S_ISDIR(st.st_mode) ? replay_folder(path) : replay_file(path);
    if (r < 0)
        fprintf(stderr, "%s: %s\n", path, strerror(-r));
    return r;
}

int main(int argc, char **argv)
{
    const char *srcdir = getenv("srcdir"), *name = strstr(program_invocation_short_name, "fuzz_");
    char corpus[4096];
    int r = 0;

    for (; argc > 2 && argv[1][0] == '-'; argc -= 2, argv += 2) {
        unsigned *number = !strcmp(argv[1], "--tries") ? &tries : &from;

        *number = (unsigned)strtoul(argv[2], NULL, 10);
    }
    if (argc < 2) {
        snprintf(corpus, sizeof(corpus), "%s/tests/fuzz/corpus/%s", srcdir ? srcdir : ".",
                 name ? name + strlen("fuzz_") : "");
        r = replay(corpus);
    }
    for (int i = 1; i < argc && r == 0; i++)
        r = replay(argv[i]);
    if (r == 0 && replayed == 0)
        fprintf(stderr, "nothing to replay\n");
    if (r == 0 && replayed && tries)
        try_all();
    printf("%u inputs\n", replayed + tries);
    return r < 0 || replayed == 0;
}
