/* test_move_ptx.c - the kernels as nvcc compiles them: the PTX that it makes with the build's
 * flags, run by ptx.c with the launches that move.c makes, against shm/reduce: bit for bit, and
 * nothing else is read or written. The twins in C (test_move.c) do not show what depends on
 * __CUDACC__.
 *
 * nvcc makes the same PTX for several architectures, and each text is run once. In the end no
 * instruction of any kernel may be left that none of the tests has come to. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>
#include <sys/mman.h>

#include "tests/unit/gpu/move_data.h"
#include "tests/unit/gpu/ptx.h"

#ifndef MOVE_PTX
#define MOVE_PTX NULL
#endif

enum { ARENA = 4 << 20, MARGIN = 64, MODULES_MAX = 8, SMALL_GRID = 0 };

static struct ptx *modules[MODULES_MAX];
static char targets[MODULES_MAX][16];
static unsigned nmodules;
static bool whole;       /* --whole: what takes a minute, too */
static char release[48]; /* of nvcc */
static bool release_known;

static struct ptx_memory memory;
static uint8_t *before, *want; /* as memory.at */
static size_t used;

/* --- the text ----------------------------------------------------------------------------- */

/* Another release may write instructions that ptx.c lacks, and code that no test comes to. */
static bool release_is_known(const char *text)
{
    static const char *const known[] = {"13.0", "13.2", "13.5"};
    const char *said = strstr(text, "// Cuda compilation tools, release ");
    bool found = false;

    snprintf(release, sizeof release, "%.40s", said ? strstr(said, "release ") : "?");
    release[strcspn(release, "\n")] = 0;
    for (unsigned i = 0; said && i < ARRAY_LEN(known); i++)
        found |= !strncmp(release + strlen("release "), known[i], strlen(known[i]));
    return found;
}

/* Modules stand one behind the other. One that differs in its .target only is not kept. */
static void nvcc_makes_what_ptx_c_knows(void **state)
{
    char *text = calloc(1, 64 << 20), *bodies[MODULES_MAX] = {0}, error[PTX_ERROR_MAX];
    FILE *file = fopen(MOVE_PTX, "r");

    assert_non_null(file);
    assert_in_range(fread(text, 1, (64 << 20) - 1, file), 1, (64 << 20) - 2);
    fclose(file);
    release_known = release_is_known(text);
    for (char *at = strstr(text, "\n.version"), *next; at; at = next) {
        char *body = strstr(at, ".address_size"), *end;
        unsigned i = 0;

        assert_non_null(body);
        next = strstr(body, "\n.version");
        if (next)
            *next++ = 0;
        end = strstr(body, "\n//\n// Generated"); /* the head of the next one */
        if (end)
            *end = 0;
        while (i < nmodules && strcmp(body, bodies[i]))
            i++;
        if (i < nmodules)
            continue;
        assert_in_range(nmodules, 0, MODULES_MAX - 1);
        assert_int_equal(sscanf(at, " .version %*s .target %15s", targets[nmodules]), 1);
        bodies[nmodules] = body;
        modules[nmodules] = ptx_new(at, error);
        if (!modules[nmodules] && release_known)
            fail_msg("%s: %s", targets[nmodules], error);
        if (!modules[nmodules]) {
            print_message("nvcc of %s, which ptx.c was not written for: %s\n", release, error);
            skip();
        }
        nmodules++;
    }
    free(text);
    assert_in_range(nmodules, 1, MODULES_MAX);
}

/* --- memory ------------------------------------------------------------------------------- */

/* Across a multiple of 4 GiB, so that a sum of addresses in 32 bits is seen. */
static int make_memory(void **state)
{
    void *wish = (void *)(0x200000000000 - 8192);

    memory.at = mmap(wish, ARENA, PROT_READ | PROT_WRITE,
                     MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
    if (memory.at != wish)
        return -1;
    memory.size = ARENA;
    memory.may = calloc(ARENA, 1);
    memory.read_by = calloc(ARENA, sizeof *memory.read_by);
    memory.put_by = calloc(ARENA, sizeof *memory.put_by);
    before = malloc(ARENA);
    want = malloc(ARENA);
    return 0;
}

static int free_memory(void **state)
{
    for (unsigned i = 0; i < nmodules; i++)
        ptx_free(modules[i]);
    munmap(memory.at, ARENA);
    free(memory.may);
    free(memory.read_by);
    free(memory.put_by);
    free(before);
    free(want);
    return 0;
}

/* @shift bytes behind a multiple of 256, with room to both sides. */
static cu_ptr take(uint64_t bytes, size_t shift)
{
    size_t at = (used + MARGIN + 255) / 256 * 256 + shift;

    assert_true(at + bytes + MARGIN <= ARENA);
    used = at + bytes + MARGIN;
    return (cu_ptr)(memory.at + at);
}

/* --- launches ------------------------------------------------------------------------------- */

static void permit(const struct gpu_move *m)
{
    uint64_t bytes = m->count * dtype_size(m->dtype);

    for (unsigned k = 0; k < m->nsrc; k++)
        for (uint64_t i = 0; i < bytes; i++)
            memory.may[m->src[k] - (cu_ptr)memory.at + i] |= PTX_READ;
    for (unsigned j = 0; j < m->ndst; j++)
        for (uint64_t i = 0; i < bytes; i++)
            memory.may[m->dst[j] - (cu_ptr)memory.at + i] |= PTX_WRITE;
}

static void expect(const struct gpu_move *m)
{
    uint64_t bytes = m->count * dtype_size(m->dtype);
    uint8_t *result = malloc(bytes + 1);

    move_expect(m, result);
    for (unsigned j = 0; j < m->ndst; j++)
        memcpy(want + (m->dst[j] - (cu_ptr)memory.at), result, bytes);
    free(result);
}

/* @n moves, which fit into one launch. With the grid for so many multiprocessors; SMALL_GRID: 2
 * blocks of 32 threads, so that few elements are several rounds. */
static void run_moves(const struct gpu_move *m, unsigned n, unsigned multiprocessors)
{
    struct gpu_launch l;
    struct ptx_launch grid;
    char error[PTX_ERROR_MAX];

    memset(&l, 0xa5, sizeof l); /* what is not set is no address */
    gpu_launch_init(&l);
    memcpy(before, memory.at, used);
    memcpy(want, memory.at, used);
    for (unsigned i = 0; i < n; i++) {
        assert_true(gpu_launch_add(&l, &m[i]));
        permit(&m[i]);
        expect(&m[i]);
    }
    assert_true(gpu_launch_close(&l, MAX(multiprocessors, 1u)));
    grid = (struct ptx_launch){.kernel = gpu_kernel_name(l.kernel),
                               .gx = multiprocessors ? l.gx : 2,
                               .gy = l.gy,
                               .threads = multiprocessors ? l.threads : 32,
                               .params = &l.batch,
                               .params_size = sizeof l.batch};
    for (unsigned i = 0; i < nmodules; i++) {
        size_t at = 0;

        memcpy(memory.at, before, used);
        if (ptx_run(modules[i], &grid, &memory, error))
            fail_msg("%s, %u sources, %u destinations, %llu elements: %s", targets[i], m->nsrc,
                     m->ndst, (unsigned long long)m->count, error);
        if (!memcmp(memory.at, want, used))
            continue;
        while (memory.at[at] == want[at])
            at++;
        fail_msg("%s %s, %u sources, %u destinations, %llu elements, divided by %u: byte %zu is "
                 "%#x, not %#x",
                 targets[i], grid.kernel, m->nsrc, m->ndst, (unsigned long long)m->count, m->divide,
                 at, memory.at[at], want[at]);
    }
    memset(memory.may, 0, used);
    used = 0;
}

/* --- single moves --------------------------------------------------------------------------- */

enum placing { ALIKE, SHIFTED, UNLIKE };

/* Of averages each second one is divided. */
static void one_move(unsigned dtype, unsigned op, unsigned nsrc, uint64_t count,
                     enum placing placing, unsigned multiprocessors)
{
    static unsigned turn;
    size_t size = dtype_size(dtype);
    struct gpu_move m = {.count = count,
                         .dtype = (uint8_t)dtype,
                         .redop = (uint8_t)op,
                         .nsrc = (uint8_t)nsrc,
                         .ndst = (uint8_t)(1 + move_random() % 3)};

    if (op == REDOP_AVG)
        m.divide = nsrc == 1 || turn++ % 2 ? 2 + (uint32_t)(move_random() % 99) : 1;
    for (unsigned k = 0; k < nsrc + m.ndst; k++) {
        size_t shift = placing == SHIFTED  ? size * (1 + count % 5)
                       : placing == UNLIKE ? size * (move_random() % 17)
                                           : 0;

        *(k < nsrc ? &m.src[k] : &m.dst[k - nsrc]) = take(count * size, shift);
    }
    for (unsigned k = 0; k < nsrc; k++) {
        m.scale[k] = k % 3 ? 1.0 / (k + 1) : -3e4;
        move_fill(dtype, (uint8_t *)m.src[k], count);
    }
    if (move_random() % 2)
        m.dst[move_random() % m.ndst] = m.src[move_random() % nsrc];
    run_moves(&m, 1, multiprocessors);
}

/* For each kernel a type and operator that it does; --whole: for each type and operator. */
static void for_kernels(void (*fn)(unsigned dtype, unsigned op))
{
    bool seen[GPU_KERNELS] = {false};

    for (unsigned d = 0; d < DTYPE_COUNT; d++) {
        for (unsigned op = 0; op < REDOP_COUNT; op++) {
            struct gpu_move m = {.dtype = (uint8_t)d, .redop = (uint8_t)op, .nsrc = 2};

            if (!redop_defined(d, op) || (seen[gpu_move_kernel(&m)] && !whole))
                continue;
            seen[gpu_move_kernel(&m)] = true;
            fn(d, op);
        }
    }
    for (unsigned k = 0; k < GPU_KERNELS; k++)
        assert_true(seen[k] || k == GPU_KERNEL_copy);
}

/* Long enough for what takes 4 vectors of each of the 64 threads at once, for the loop behind it,
 * and for what vectors leave; shorter ones; and such that some threads have a vector more. */
static void in_small_grids(unsigned dtype, unsigned op)
{
    unsigned lanes = 16 / (unsigned)dtype_size(dtype);
    uint64_t rounds = (uint64_t)lanes * 64 * 5;

    for (unsigned nsrc = 1; nsrc <= BATCH_SOURCES; nsrc++) {
        if (nsrc == 1 && op != REDOP_AVG && op != REDOP_PREMUL_SUM)
            continue; /* a copy */
        for (unsigned twice = 0; twice < 2; twice++) {
            one_move(dtype, op, nsrc, rounds + 3 * lanes - twice, twice, SMALL_GRID);
            one_move(dtype, op, nsrc, 131 + twice, UNLIKE, SMALL_GRID);
            one_move(dtype, op, nsrc, 1 + nsrc % 2 * lanes, SHIFTED, SMALL_GRID);
        }
        for (uint64_t n = 2; (nsrc < 5 || nsrc == 8 || whole) && n <= 5; n++)
            one_move(dtype, op, nsrc, lanes * (64 * n - 20), ALIKE, SMALL_GRID);
        for (uint64_t n = 1; whole && n < 2 * lanes; n++)
            one_move(dtype, op, nsrc, n, n % 3, SMALL_GRID);
    }
}

static void in_their_own_grids(unsigned dtype, unsigned op)
{
    uint64_t size = dtype_size(dtype);

    one_move(dtype, op, 2, (76 << 10) / size + 5, SHIFTED, 1); /* 2 blocks, several rounds */
    one_move(dtype, op, 3, (33 << 10) / size + 1, ALIKE, 132); /* 3 blocks, one round */
    for (unsigned nsrc = 2; whole && nsrc <= BATCH_SOURCES; nsrc++)
        one_move(dtype, op, nsrc, (80 << 10) / size - 3, nsrc / 2 % 3, nsrc % 2 ? 1 : 132);
}

static void every_kernel_in_small_grids(void **state)
{
    for_kernels(in_small_grids);
}

static void every_kernel_in_its_own_grid(void **state)
{
    for_kernels(in_their_own_grids);
}

/* At all differences of addresses modulo 16. */
static void copies_of_bytes(void **state)
{
    static const unsigned counts[] = {1, 15, 64, 1000, 2750, 3800, 5200, 76 << 10};

    for (unsigned i = 0; i < 16; i++) {
        for (unsigned c = 0; c < ARRAY_LEN(counts); c++) {
            struct gpu_move m = {.count = counts[c], .dtype = DTYPE_U8, .nsrc = 1};
            size_t shift = move_random() % 16;

            m.ndst = (uint8_t)(1 + (i + c) % 9);
            m.src[0] = take(m.count, shift);
            move_fill(DTYPE_U8, (uint8_t *)m.src[0], m.count);
            for (unsigned j = 0; j < m.ndst; j++)
                m.dst[j] = take(m.count, (shift + i) % 16);
            run_moves(&m, 1, c == 7 ? 1 : SMALL_GRID);
        }
    }
}

/* Each 16-bit float alone is divided and scaled as on the host. */
static void each_16_bit_float(void **state)
{
    static const unsigned dtypes[] = {DTYPE_F16, DTYPE_BF16}, ops[] = {REDOP_AVG, REDOP_PREMUL_SUM};

    for (unsigned t = 0; t < 4; t++) {
        struct gpu_move m = {.count = 65536,
                             .dtype = (uint8_t)dtypes[t / 2],
                             .redop = (uint8_t)ops[t % 2],
                             .nsrc = 1,
                             .ndst = 1,
                             .divide = ops[t % 2] == REDOP_AVG ? 7 : 0,
                             .scale = {0.3}};

        m.src[0] = take(2 * m.count, 0);
        m.dst[0] = take(2 * m.count, 0);
        for (unsigned i = 0; i < m.count; i++)
            ((uint16_t *)m.src[0])[i] = (uint16_t)i;
        run_moves(&m, 1, 4);
    }
}

/* --- many moves in a launch ------------------------------------------------------------------- */

static struct gpu_move move_of(unsigned dtype, unsigned op, unsigned nsrc, unsigned ndst,
                               uint64_t count)
{
    struct gpu_move m = {.count = count,
                         .dtype = (uint8_t)dtype,
                         .redop = (uint8_t)op,
                         .nsrc = (uint8_t)nsrc,
                         .ndst = (uint8_t)ndst};

    for (unsigned k = 0; k < nsrc; k++) {
        m.src[k] = take(count * dtype_size(dtype), 8 * (k % 2));
        m.scale[k] = 0.1 * k;
        move_fill(dtype, (uint8_t *)m.src[k], count);
    }
    for (unsigned j = 0; j < ndst; j++)
        m.dst[j] = take(count * dtype_size(dtype), 8 * (nsrc % 2));
    return m;
}

static void launches_of_many_moves(void **state)
{
    static struct gpu_move m[BATCH_MOVES];
    unsigned full = BATCH_WORDS / (2 + 3 * BATCH_SOURCES);

    for (unsigned i = 0; i < BATCH_MOVES; i++)
        m[i] = move_of(DTYPE_F32, REDOP_SUM, 1, 1, 1 + 97 * (uint64_t)i);
    run_moves(m, BATCH_MOVES, 132);
    for (unsigned i = 0; i < full; i++)
        m[i] = move_of(DTYPE_F64, REDOP_PREMUL_SUM, BATCH_SOURCES, BATCH_SOURCES, 5 + 7 * i);
    run_moves(m, full, 132);
    for (unsigned i = 0; i < 20; i++)
        m[i] = move_of(DTYPE_BF16, REDOP_SUM, 1 + i % 5 + (i % 5 == 0), 1 + i % 2, 40 + 999 * i);
    run_moves(m, 20, 8);
}

static void no_instruction_is_left(void **state)
{
    for (unsigned i = 0; i < nmodules; i++) {
        char first[PTX_ERROR_MAX];
        unsigned all, never = ptx_never_run(modules[i], &all, first);

        print_message("%s: %u instructions, %u of them never run\n", targets[i], all, never);
        if (never && release_known)
            fail_msg("%s: %u of %u instructions were never run: %s", targets[i], never, all, first);
    }
}

/* --- the interpreter ------------------------------------------------------------------------ */

/* A kernel of two threads with @body; its parameters are the addresses of 16 bytes to read and of
 * 32 to write, of which the second half may be read. NULL, or what was wrong. */
static const char *run_body(const char *body)
{
    static char text[4096], error[PTX_ERROR_MAX];
    uint64_t params[2];
    struct ptx_launch l = {"k", 1, 1, 2, params, sizeof params};
    struct ptx *x;
    const char *said = NULL;

    snprintf(text, sizeof text,
             ".version 9.0\n.target sm_90\n.address_size 64\n"
             ".visible .entry k(\n.param .align 8 .b8 k_param_0[16]\n)\n{\n"
             ".reg .pred %%p<3>;\n.reg .b16 %%h<3>;\n.reg .b32 %%r<9>;\n.reg .b64 %%d<9>;\n"
             "ld.param.u64 %%d1, [k_param_0];\nld.param.u64 %%d2, [k_param_0+8];\n"
             "mov.u32 %%r1, %%tid.x;\nmul.wide.u32 %%d3, %%r1, 16;\nadd.s64 %%d4, %%d2, %%d3;\n"
             "%s\n}\n",
             body);
    x = ptx_new(text, error);
    if (!x)
        return error;
    params[0] = take(16, 0);
    params[1] = take(32, 0);
    memset(memory.may + (params[0] - (cu_ptr)memory.at), PTX_READ, 16);
    memset(memory.may + (params[1] - (cu_ptr)memory.at), PTX_WRITE, 32);
    memset(memory.may + (params[1] + 16 - (cu_ptr)memory.at), PTX_READ | PTX_WRITE, 16);
    if (ptx_run(x, &l, &memory, error))
        said = error;
    ptx_free(x);
    memset(memory.may, 0, used);
    used = 0;
    return said;
}

static void what_is_wrong_is_seen(void **state)
{
    static const struct {
        const char *body, *said;
    } rows[] = {
        {"ld.global.u32 %r2, [%d1+12];\nst.global.u32 [%d4+12], %r2;\nret;", NULL},
        {"ld.global.u32 %r2, [%d1+16];\nret;", "not its to read"},
        {"ld.global.u32 %r2, [%d2];\nret;", "not its to read"},
        {"st.global.u32 [%d1], %r1;\nret;", "not its to write"},
        {"st.global.u32 [%d4+20], %r1;\nret;", "not its to write"}, /* by thread 1 */
        {"ld.global.u32 %r2, [%d2+28];\nst.global.u32 [%d4+12], %r2;\nret;", "read by another"},
        {"st.global.u32 [%d4+16], %r1;\nld.global.u32 %r2, [%d4+16];\nret;", "written before"},
        {"ld.global.u32 %r2, [%d1+8589934592];\nret;", "not of the launch's memory"},
        {"ld.global.u16 %h1, [%d1+1];\nret;", "no multiple of 2"},
        {"ld.global.v4.u32 {%r2, %r3, %r4, %r5}, [%d1+8];\nret;", "no multiple of 16"},
        {"ld.global.v4.u32 {%r2, %r3, %r4, %r5}, [%d1+16];\nret;", "not its to read"},
        {"st.global.v4.u32 [%d2+8], {%r1, %r1, %r1, %r1};\nret;", "no multiple of 16"},
        {"st.global.u32 [%d2], %r1;\nret;", "written before"},
        {"ld.param.u64 %d5, [k_param_0+16];\nret;", "of parameters"},
        {"ld.param.u64 %d5, [k_param_0+4];\nret;", "no multiple of 8"},
        {"add.s32 %r2, %r1, %r3;\nret;", "operand 2 was never written"},
        {"@%p1 bra $L;\n$L:\nret;", "was never written"},
        {"div.u32 %r2, %r1, 0;\nret;", "divides by zero"},
        {"$L:\nbra.uni $L;", "no end"},
        {"add.s32 %r2, %r1, 1;", "no ret"},
        {"fma.rn.f32 %r2, %r1, %r1, %r1;\nret;", "unknown instruction: fma.rn.f32"},
        {"add.ftz.rn.f32 %r2, %r1, %r1;\nret;", "unknown instruction: add.ftz.rn.f32"},
        {"add.s64 %d5, %d1, %r1;\nret;", "%r1 has 32 bits, not 64"},
        {"mov.u32 %r2, %laneid;\nret;", "not known: %laneid"},
        {"bra $L;\nret;", "no label $L"},
        {"bar.sync 0;\nret;", "unknown instruction: bar.sync"},
    };

    for (unsigned i = 0; i < ARRAY_LEN(rows); i++) {
        const char *said = run_body(rows[i].body);

        if (!said != !rows[i].said || (said && !strstr(said, rows[i].said)))
            fail_msg("%s\nsaid: %s\nnot: %s", rows[i].body, said ? said : "nothing",
                     rows[i].said ? rows[i].said : "nothing");
    }
}

/* Values that other tests do not need, or not alone. */
static void instructions_do_as_the_isa_says(void **state)
{
    static const struct {
        const char *code;
        uint32_t is;
    } rows[] = {
        {"bfe.u32 %r2, 0x12345678, 8, 8;", 0x56},
        {"bfe.s32 %r2, 0x1234f678, 8, 8;", 0xfffffff6},
        {"bfe.s32 %r2, 0x80000000, 28, 8;", 0xfffffff8},
        {"bfe.u32 %r2, 0x12345678, 40, 8;", 0},
        {"bfe.s32 %r2, 0x80000000, 40, 8;", 0xffffffff},
        {"bfe.s32 %r2, -1, 0, 0;", 0},
        {"prmt.b32 %r2, 0x44332211, 0x88776655, 0x7041;", 0x88115522},
        {"prmt.b32 %r2, 0x44332211, 0x88776655, 0x3f40;", 0x44ff5511},
        {"prmt.b32 %r2, 0x44332211, 0, 0x7770U;", 0x11},
        {"mov.b64 {_, %r2}, 0x500000007;", 5},
        {"shf.l.wrap.b32 %r2, 0x80000001, 0x3, 31;", 0xc0000000},
        {"shl.b32 %r2, 1, 32;", 0},
        {"shr.s32 %r2, -2, 40;", 0xffffffff},
        {"shr.u32 %r2, -2, 32;", 0},
        {"mul.lo.s32 %r2, -3, 7;", 0xffffffeb},
        {"div.s32 %r2, -7, 2;", 0xfffffffd},
        {"min.s32 %r2, -1, 1;", 0xffffffff},
        {"min.u32 %r2, -1, 1;", 1},
        {"bfi.b64 %d5, 0xabc, 0, 28, 8;\nmov.b64 {%r3, %r2}, %d5;", 0xb},
        {"mov.b32 %r3, 0x1234ff80;\ncvt.s8.s32 %h1, %r3;\ncvt.s32.s16 %r2, %h1;", 0xffffff80},
        {"mov.b32 %r3, -1;\ncvt.u16.u32 %h1, %r3;\ncvt.u32.u16 %r2, %h1;", 0xffff},
        {"cvt.rn.f32.u32 %r2, 16777217;", 0x4b800000},
        {"cvt.rn.f32.u32 %r2, 16777219;", 0x4b800002},
        {"cvt.rn.f32.f64 %r2, 0d3FF0000010000001;", 0x3f800001},
        {"cvt.f32.f16 %r2, 0x0001;", 0x33800000},
        {"cvt.f32.f16 %r2, 0xfbff;", 0xc77fe000},
        {"cvt.rn.f16.f32 %h1, 0f80000000;\ncvt.u32.u16 %r2, %h1;", 0x8000},
        {"cvt.rn.f16.f32 %h1, 0f33000000;\ncvt.u32.u16 %r2, %h1;", 0},
        {"cvt.rn.f16.f32 %h1, 0f33000001;\ncvt.u32.u16 %r2, %h1;", 1},
        {"cvt.rn.f16.f32 %h1, 0f387FF000;\ncvt.u32.u16 %r2, %h1;", 0x0400},
        {"cvt.rn.f16.f32 %h1, 0f477FEFFF;\ncvt.u32.u16 %r2, %h1;", 0x7bff},
        {"cvt.rn.f16.f32 %h1, 0fC77FF000;\ncvt.u32.u16 %r2, %h1;", 0xfc00},
        {"cvt.rn.f16.f32 %h1, 0f3F801000;\ncvt.u32.u16 %r2, %h1;", 0x3c00},
        {"cvt.rn.f16.f32 %h1, 0f3F803000;\ncvt.u32.u16 %r2, %h1;", 0x3c02},
        {"setp.lt.f32 %p1, 0f7FC00000, 0f00000000;\nselp.b32 %r2, 1, 2, %p1;", 2},
        {"setp.nan.f32 %p1, 0f7FC00000, 0f00000000;\nselp.b32 %r2, 1, 2, %p1;", 1},
        {"setp.eq.f32 %p1, 0f80000000, 0f00000000;\nselp.b32 %r2, 1, 2, %p1;", 1},
        {"mul.rn.f32 %r2, 0f00800000, 0f3F000000;", 0x00400000}, /* no flush to zero */
        {"mul.wide.u16 %r2, 0xffff, 0xffff;", 0xfffe0001},
        {"{ .reg .b32 t; mov.b64 {t, %r2}, %d4; }\nsub.s32 %r2, %r2, %r2;", 0},
    };

    for (unsigned i = 0; i < ARRAY_LEN(rows); i++) {
        char body[512];
        const char *said;

        snprintf(body, sizeof body, "%s\nst.global.u32 [%%d4], %%r2;\nret;", rows[i].code);
        said = run_body(body);
        if (said)
            fail_msg("%s\nsaid: %s", rows[i].code, said);
        for (unsigned thread = 0; thread < 2; thread++) {
            uint32_t is;

            memcpy(&is, memory.at + 512 + 16 * thread, sizeof is);
            if (is != rows[i].is)
                fail_msg("%s\nis %#x, not %#x", rows[i].code, is, rows[i].is);
        }
    }
}

int main(int argc, char **argv)
{
    const struct CMUnitTest of_ptx_c[] = {
        cmocka_unit_test(what_is_wrong_is_seen),
        cmocka_unit_test(instructions_do_as_the_isa_says),
    };
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(nvcc_makes_what_ptx_c_knows),
        cmocka_unit_test(every_kernel_in_small_grids),
        cmocka_unit_test(every_kernel_in_its_own_grid),
        cmocka_unit_test(copies_of_bytes),
        cmocka_unit_test(each_16_bit_float),
        cmocka_unit_test(launches_of_many_moves),
        cmocka_unit_test(no_instruction_is_left),
    };

    if (cmocka_run_group_tests(of_ptx_c, make_memory, free_memory))
        return 1;
    if (!MOVE_PTX) {
        puts("SKIPPED: built without a CUDA compiler: there is no PTX to run");
        return 77;
    }
    whole = argc > 1 && !strcmp(argv[1], "--whole");
    return cmocka_run_group_tests(tests, make_memory, free_memory);
}
