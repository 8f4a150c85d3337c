/* descriptors.h - how many descriptors this process has. */
#ifndef COMMD_TEST_DESCRIPTORS_H
#define COMMD_TEST_DESCRIPTORS_H

#include <dirent.h>
#include <stdlib.h>

/* And some more, always as many: only differences count. */
static inline unsigned open_descriptors(void)
{
    DIR *dir = opendir("/proc/self/fd");
    unsigned n = 0;

    if (!dir)
        abort();
    while (readdir(dir))
        n++;
    closedir(dir);
    return n;
}

#endif
