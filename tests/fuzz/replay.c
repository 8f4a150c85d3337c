/* replay.c - runs a fuzz target over a corpus, as a plain program.
 *
 *     fuzz_NAME [FILE | FOLDER]...
 *
 * Without arguments: tests/fuzz/corpus/NAME below $srcdir, which is how `make check` calls it.
 * Each input is copied to a block of exactly its size, so that the sanitizers see a read past
 * its end. A folder that is missing or empty is an error: a test that ran nothing has not
 * passed. Built with -fsanitize=fuzzer instead of this file, the same target explores. */
#include <dirent.h>
#include <stdio.h>
#include <sys/stat.h>

#include "shm/util/base.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static unsigned replayed;

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
    return 0;
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

    if (argc < 2) {
        snprintf(corpus, sizeof(corpus), "%s/tests/fuzz/corpus/%s", srcdir ? srcdir : ".",
                 name ? name + strlen("fuzz_") : "");
        r = replay(corpus);
    }
    for (int i = 1; i < argc && r == 0; i++)
        r = replay(argv[i]);
    if (r == 0 && replayed == 0)
        fprintf(stderr, "nothing to replay\n");
    printf("%u inputs\n", replayed);
    return r < 0 || replayed == 0;
}
