/* heap_has.h - is a secret in the heap of this process, used or freed? To be included once. */
#ifndef COMMD_HEAP_HAS_H
#define COMMD_HEAP_HAS_H

#include <stdio.h>

#include "shm/util/base.h"

enum { HEAP_WORD = 16 }; /* bytes of a secret that are looked for */

/* A secret as the test keeps it: each byte is changed, so that this is not what is found. */
static inline void hide(uint8_t *bytes, size_t n)
{
    for (size_t i = 0; i < n; i++)
        bytes[i] ^= 0x55;
}

static bool memory_has(const uint8_t *at, const uint8_t *end, const uint8_t hidden[HEAP_WORD])
{
    for (; at + HEAP_WORD <= end; at++) {
        unsigned i = 0;

        while (i < HEAP_WORD && at[i] == (hidden[i] ^ 0x55))
            i++;
        if (i == HEAP_WORD)
            return true;
    }
    return false;
}

/* -1: this process has no heap that can be looked at. */
static int heap_has(const uint8_t hidden[HEAP_WORD])
{
    FILE *maps = fopen("/proc/self/maps", "re");
    unsigned long from, to;
    char line[512];
    int found = -1;

    assert(maps);
    while (fgets(line, sizeof(line), maps))
        if (strstr(line, "[heap]") && sscanf(line, "%lx-%lx rw", &from, &to) == 2)
            found = memory_has((uint8_t *)from, (uint8_t *)to, hidden);
    fclose(maps);
    return found;
}

/* False: a sanitizer, or malloc(), has put what is allocated elsewhere, so nothing can be shown. */
static inline bool heap_is_seen(void)
{
    static const uint8_t word[HEAP_WORD] = {1, 3, 5, 7, 9, 11, 13, 15, 17};
    uint8_t hidden[HEAP_WORD], *there = malloc(512);
    bool seen;

    for (unsigned i = 0; i < HEAP_WORD; i++)
        hidden[i] = word[i] ^ (uint8_t)getpid();
    memcpy(there + 64, hidden, HEAP_WORD);
    hide(hidden, HEAP_WORD);
    seen = heap_has(hidden) == 1;
    free_wiped(there, 512);
    return seen && heap_has(hidden) == 0;
}

#endif
