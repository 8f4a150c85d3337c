/* ptx_priv.h - what ptx.c, ptx_parse.c and ptx_math.c have in common. */
#ifndef COMMD_TEST_PTX_PRIV_H
#define COMMD_TEST_PTX_PRIV_H

#include <stdbool.h>

#include "shm/util/base.h"
#include "tests/unit/gpu/ptx.h"

/* Parameters have a space of their own; no pointer into memory looks like this. */
#define PTX_PARAM_SPACE 0xfff0a00000000000u

enum ptx_type { B8, U8, S8, U16, S16, B16, U32, S32, B32, U64, S64, B64, F16, F32, F64, PRED };

extern const struct ptx_type_info {
    const char *name;
    uint8_t bits;
    char kind; /* i: an integer; b: bits; f; h: f16; c: a byte, only in memory and for cvt; p */
    bool is_signed;
} ptx_types[];

enum ptx_op {
    OP_MOV,
    OP_PACK,
    OP_UNPACK,
    OP_LD,
    OP_LD_PARAM,
    OP_ST,
    OP_BRA,
    OP_RET,
    OP_CVT,
    OP_CVT_RN,
    OP_ADD,
    OP_SUB,
    OP_MUL,
    OP_MUL_WIDE,
    OP_MAD,
    OP_DIV,
    OP_NEG,
    OP_MIN,
    OP_MAX,
    OP_AND,
    OP_OR,
    OP_XOR,
    OP_NOT,
    OP_SHL,
    OP_SHR,
    OP_SHF,
    OP_BFE,
    OP_BFI,
    OP_PRMT,
    OP_SELP,
    OP_EQ,
    OP_NE,
    OP_LT,
    OP_LE,
    OP_GT,
    OP_GE,
    OP_NAN,
};

struct ptx_insn {
    uint8_t op, type, from; /* @from: what cvt reads */
    uint8_t nsrc, ndst;
    bool unless, ran;
    uint16_t guard; /* a predicate; ALWAYS */
    uint16_t src[4], dst[4];
    unsigned target; /* of a branch */
    int64_t offset;  /* of an address */
    const char *text;
    unsigned line;
};

/* Slots that each kernel has: for no predicate, and for what a thread asks about itself. */
enum { ALWAYS, TID_X, NTID_X, CTAID_X, CTAID_Y, NCTAID_X, NCTAID_Y, FIXED };

enum { PTX_NAME_MAX = 64 };

struct ptx_kernel {
    char name[PTX_NAME_MAX];
    size_t param_size;
    unsigned maxntid;
    unsigned ninsns, nslots;
    struct ptx_insn *insns; /* owned */
    uint8_t *bits;          /* owned: width of each slot; 0: a constant of any */
    bool *set;              /* owned: which are before a thread begins */
    uint64_t *value;        /* owned */
};

struct ptx {
    unsigned nkernels;
    struct ptx_kernel *kernels; /* owned */
    char *text;                 /* owned */
};

/* What an instruction makes of the values of its operands: all that touch neither memory nor the
 * course of the thread. @bits: the width of the register that it goes to. */
uint64_t ptx_compute(const struct ptx_insn *i, const uint64_t *v, unsigned bits);

static inline uint64_t ptx_low(uint64_t v, unsigned bits)
{
    return bits < 64 ? v & ((1ull << bits) - 1) : v;
}

static inline int64_t ptx_signed(uint64_t v, unsigned bits)
{
    return (int64_t)(v << (64 - bits)) >> (64 - bits);
}

#endif
