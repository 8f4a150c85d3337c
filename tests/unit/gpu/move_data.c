/* move_data.c - see move_data.h. */
#include "tests/unit/gpu/move_data.h"

#include <stdlib.h>

#include "shm/reduce/reduce.h"

static uint64_t random_state = 7;

uint64_t move_random(void)
{
    random_state ^= random_state << 13;
    random_state ^= random_state >> 7;
    random_state ^= random_state << 17;
    return random_state;
}

/* Where formats end: infinities, NaNs with payloads, both zeros, subnormals, the largest. */
static uint64_t special(unsigned dtype)
{
    static const uint64_t
        f16[] = {0x7c00, 0xfc00, 0x7e01, 0x7c01, 0, 0x8000, 1, 0x83ff, 0x7bff},
        bf16[] = {0x7f80, 0xff80, 0x7fc1, 0x7f81, 0, 0x8000, 1, 0x807f, 0x7f7f},
        f32[] = {0x7f800000, 0xff800000, 0x7fc00001, 0x7f800001, 0,
                 0x80000000, 1,          0x807fffff, 0x7f7fffff},
        f64[] = {0x7ff0000000000000,
                 0xfff0000000000000,
                 0x7ff8000000000001,
                 0x7ff0000000000001,
                 0,
                 0x8000000000000000,
                 1,
                 0x800fffffffffffff,
                 0x7fefffffffffffff},
        ints[] = {0,          1,         UINT64_MAX,        0x7f, 0x80, 0x7fff, 0x8000, 0x7fffffff,
                  0x80000000, INT64_MAX, 0x8000000000000000};
    uint64_t r = move_random();

    switch ((enum dtype)dtype) {
    case DTYPE_F16:
        return f16[r % ARRAY_LEN(f16)];
    case DTYPE_BF16:
        return bf16[r % ARRAY_LEN(bf16)];
    case DTYPE_F32:
        return f32[r % ARRAY_LEN(f32)];
    case DTYPE_F64:
        return f64[r % ARRAY_LEN(f64)];
    case DTYPE_BOOL:
        return r & 1;
    case DTYPE_I8:
    case DTYPE_U8:
    case DTYPE_I16:
    case DTYPE_U16:
    case DTYPE_I32:
    case DTYPE_U32:
    case DTYPE_I64:
    case DTYPE_U64:
    case DTYPE_COUNT:
        break;
    }
    return ints[r % ARRAY_LEN(ints)];
}

void move_fill(unsigned dtype, uint8_t *p, size_t count)
{
    size_t size = dtype_size(dtype);

    for (size_t i = 0; i < count; i++, p += size) {
        uint64_t bits = move_random() % 4 ? move_random() : special(dtype);

        memcpy(p, &bits, size);
    }
}

void move_expect(const struct gpu_move *m, void *ret_want)
{
    size_t bytes = m->count * dtype_size(m->dtype);
    uint8_t *scaled = malloc(BATCH_SOURCES * bytes + 1);
    const void *src[BATCH_SOURCES];

    for (unsigned k = 0; k < m->nsrc; k++) {
        src[k] = (const void *)m->src[k];
        if (m->redop == REDOP_PREMUL_SUM) {
            reduce_scale(m->dtype, scaled + k * bytes, src[k], m->scale[k], m->count);
            src[k] = scaled + k * bytes;
        }
    }
    reduce_n(m->dtype, m->redop, ret_want, src, m->nsrc, m->count);
    if (m->divide)
        reduce_finish(m->dtype, m->redop, ret_want, m->count, m->divide);
    free(scaled);
}
