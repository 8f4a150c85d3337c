/* hash.h - FNV-1a: a number for a few bytes, of which nobody may choose many that meet. */
#ifndef COMMD_HASH_H
#define COMMD_HASH_H

#include "shm/util/base.h"

#define HASH_BEGIN UINT64_C(0xcbf29ce484222325)

static inline uint64_t hash_bytes(uint64_t before, const void *bytes, size_t len)
{
    for (const uint8_t *b = bytes; len--; b++)
        before = (before ^ *b) * UINT64_C(0x100000001b3);
    return before;
}
static inline uint64_t hash_text(uint64_t before, const char *text)
{
    return hash_bytes(before, text, strlen(text));
}

#endif
