/* frames.h - frames whose bytes a test or the fuzzer's corpus says itself. In the place of the
 * format, the third byte, stands how far it is from CODEC_FORMAT: 0 in what shall go beyond the
 * check of the format. So the bytes outlive a raise. */
#ifndef COMMD_TESTS_FRAMES_H
#define COMMD_TESTS_FRAMES_H

#include "shm/proto/codec.h"

/* A copy with the format, in memory of exactly @len bytes; the caller frees it. */
static inline uint8_t *frame_bytes(const void *bytes, size_t len)
{
    uint8_t *frame = malloc(len ? len : 1);

    if (!frame)
        abort();
    memcpy(frame, bytes, len);
    if (len > 2 && frame[0] == 'c' && frame[1] == 'd')
        frame[2] = (uint8_t)(frame[2] + CODEC_FORMAT);
    return frame;
}

#endif
