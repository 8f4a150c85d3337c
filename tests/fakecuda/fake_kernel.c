/* fake_kernel.c - kernels: there is no device code, a twin for the host runs instead. README.md
 * says where twins come from. */
#include "tests/fakecuda/fake.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { TABLES = 8, PARAM_BYTES = 4096 };

struct CUfunc_st {
    const struct fakecuda_kernel *kernel;
    cu_context ctx;
    bool loaded;
    struct CUfunc_st *next;
};
struct CUmod_st {
    cu_context ctx;
    struct CUmod_st *next;
};
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* over all of these */
static const struct fakecuda_kernel *tables[TABLES];
static unsigned ntables;
static struct CUfunc_st *functions;
static struct CUmod_st *modules;
static atomic_uint launches;

/* ---- twins ----------------------------------------------------------------------------------- */

void fakecuda_register_kernels(const struct fakecuda_kernel *table)
{
    pthread_mutex_lock(&lock);
    for (unsigned i = 0; i < ntables; i++)
        if (tables[i] == table)
            table = NULL;
    if (table && ntables < TABLES)
        tables[ntables++] = table;
    pthread_mutex_unlock(&lock);
}

static void find_tables(void)
{
    char path[512];
    void *library;

    fakecuda_register_kernels(dlsym(RTLD_DEFAULT, "commd_kernel_table"));
    if (!fake_knob_text("FAKECUDA_KERNELS", path, sizeof path)) {
        Dl_info self;
        const char *slash;

        if (!dladdr((void *)find_tables, &self) || !(slash = strrchr(self.dli_fname, '/')))
            return;
        snprintf(path, sizeof path, "%.*s/libfakekernels.so", (int)(slash - self.dli_fname),
                 self.dli_fname);
    }
    library = path[0] ? dlopen(path, RTLD_NOW | RTLD_LOCAL) : NULL;
    if (library)
        fakecuda_register_kernels(dlsym(library, "commd_kernel_table"));
}

static const struct fakecuda_kernel *twin(const char *name) /* under lock */
{
    for (unsigned i = 0; i < ntables; i++)
        for (const struct fakecuda_kernel *k = tables[i]; k->name; k++)
            if (!strcmp(k->name, name))
                return k;
    return NULL;
}

/* ---- images ---------------------------------------------------------------------------------- */

/* "12.6" as 126. */
static unsigned dotted(const char *text)
{
    unsigned major = 0, minor = 0;

    return sscanf(text, "%u.%u", &major, &minor) == 2 ? major * 10 + minor : 0;
}

/* The newest PTX that a driver of this version compiles: NVIDIA's table of releases. */
static unsigned ptx_of(unsigned driver)
{
    return driver >= 126 && driver < 130 ? driver - 41 : driver - 40;
}

/* The architecture of machine code; its form is CUDA 13's from ABI 8 on. */
static unsigned elf_arch(const uint8_t *image)
{
    return image[7] == 0x41 ? image[0x31] : image[0x30];
}

static cu_result elf_refused(const uint8_t *image, unsigned driver, unsigned cc)
{
    unsigned arch = elf_arch(image);

    if (image[8] >= 8 && driver < 130)
        return CU_E_INVALID_IMAGE;
    return arch / 10 == cc / 10 && arch <= cc ? CU_SUCCESS : CU_E_NO_BINARY_FOR_GPU;
}

static cu_result ptx_refused(const char *image, unsigned driver, unsigned cc)
{
    const char *version = strstr(image, "\n.version "), *target = strstr(image, "\n.target sm_");

    if (!version || !target)
        return CU_SUCCESS; /* a test's, in no language */
    if (dotted(version + strlen("\n.version ")) > ptx_of(driver))
        return CU_E_UNSUPPORTED_PTX;
    return (unsigned)atoi(target + strlen("\n.target sm_")) <= cc ? CU_SUCCESS
                                                                  : CU_E_NO_BINARY_FOR_GPU;
}

static cu_result image_refused(const void *image)
{
    unsigned version = (unsigned)fake_knob("FAKECUDA_VERSION", 13000);
    unsigned driver = version / 1000 * 10 + version % 1000 / 10;
    unsigned cc = (unsigned)fake_knob("FAKECUDA_CC", FAKE_CC);

    return strncmp(image, "\177ELF", 4) ? ptx_refused(image, driver, cc)
                                        : elf_refused(image, driver, cc);
}

cu_result cuModuleLoadData(cu_module *module, const void *image)
{
    struct CUmod_st *m;
    cu_result r;

    FAKE_ENTER(FAKE_CONTEXT);
    if (!module || !image)
        return CU_E_INVALID_VALUE;
    r = image_refused(image);
    if (r)
        return r;
    m = malloc(sizeof *m);
    if (!m)
        return CU_E_OUT_OF_MEMORY;
    find_tables();
    pthread_mutex_lock(&lock);
    *m = (struct CUmod_st){fake_current(), modules};
    modules = m;
    pthread_mutex_unlock(&lock);
    *module = m;
    return CU_SUCCESS;
}

cu_result cuModuleGetFunction(cu_function *f, cu_module module, const char *name)
{
    const struct fakecuda_kernel *k = NULL;
    struct CUfunc_st *made = NULL;
    struct CUmod_st *m;

    FAKE_ENTER(FAKE_CONTEXT);
    if (!f || !name)
        return CU_E_INVALID_VALUE;
    pthread_mutex_lock(&lock);
    for (m = modules; m && m != module;)
        m = m->next;
    if (m)
        k = twin(name);
    if (k)
        made = malloc(sizeof *made);
    if (made) {
        *made = (struct CUfunc_st){.kernel = k, .ctx = m->ctx, .next = functions};
        functions = made;
        *f = made;
    }
    pthread_mutex_unlock(&lock);
    return !m ? CU_E_INVALID_HANDLE : !k ? CU_E_NOT_FOUND : made ? CU_SUCCESS : CU_E_OUT_OF_MEMORY;
}

cu_result cuFuncLoad(cu_function f)
{
    FAKE_ENTER(FAKE_CONTEXT);
    pthread_mutex_lock(&lock);
    for (struct CUfunc_st *g = functions; g; g = g->next)
        if (g == f)
            g->loaded = true;
    pthread_mutex_unlock(&lock);
    return CU_SUCCESS;
}

/* ---- launches -------------------------------------------------------------------------------- */

struct launch_op {
    struct fake_op op;
    const struct fakecuda_kernel *kernel;
    void *params[FAKECUDA_PARAMS];
    size_t bytes;
    uint64_t values[PARAM_BYTES / sizeof(uint64_t)];
};

static void call(void *arg)
{
    struct launch_op *l = arg;

    l->kernel->fn(l->params);
}

static cu_result launch(struct fake_op *op)
{
    struct launch_op *l = (struct launch_op *)op;
    cu_context ctx = op->stream->ctx;
    unsigned n = atomic_fetch_add(&launches, 1) + 1;
    bool ok = true;

    if (n > fake_knob("FAKECUDA_STICKY_AFTER", UINT64_MAX))
        return CU_E_ILLEGAL_ADDRESS;
    while (n > fake_knob("FAKECUDA_HANG_AFTER", UINT64_MAX) && !atomic_load(&ctx->sticky))
        fake_pause(1000);
    pthread_rwlock_rdlock(&memory_lock);
    for (size_t i = 0; i < l->bytes / sizeof l->values[0]; i++) /* whatever looks like a pointer */
        ok &= !fake_foreign(l->values[i], ctx);
    if (ok) {
        fake_memory_expose(true);
        ok = fake_guarded(call, l);
        fake_memory_expose(false);
    }
    pthread_rwlock_unlock(&memory_lock);
    return ok ? CU_SUCCESS : CU_E_ILLEGAL_ADDRESS;
}

static bool copy_params(struct launch_op *l, void **params)
{
    const struct fakecuda_kernel *k = l->kernel;

    for (unsigned i = 0; i < k->nparams; i++) {
        size_t room = (k->sizes[i] + 15) & ~(size_t)15;

        if (!params || !params[i] || room > PARAM_BYTES - l->bytes)
            return false;
        l->params[i] = (char *)l->values + l->bytes;
        memcpy(l->params[i], params[i], k->sizes[i]);
        if (i == 0 && k->used && k->used(params[0]) < k->sizes[0])
            memset((char *)l->params[0] + k->used(params[0]), 0, k->sizes[0] - k->used(params[0]));
        l->bytes += room;
    }
    return true;
}

cu_result cuLaunchKernel(cu_function f, unsigned gx, unsigned gy, unsigned gz, unsigned bx,
                         unsigned by, unsigned bz, unsigned shared, cu_stream s, void **params,
                         void **extra)
{
    struct launch_op *l;
    struct CUfunc_st *g;
    cu_result r;

    FAKE_ENTER(FAKE_CONTEXT);
    pthread_mutex_lock(&lock);
    for (g = functions; g && g != f;)
        g = g->next;
    pthread_mutex_unlock(&lock);
    if (!g)
        return CU_E_INVALID_HANDLE;
    if (!gx || !gy || !gz || !bx || !by || !bz || gy > 65535 || gz > 65535 ||
        (uint64_t)bx * by * bz > 1024 || shared > (48 << 10) || extra)
        return CU_E_INVALID_VALUE;
    r = fake_stream(s, &s);
    if (r)
        return r;
    if (s->ctx != g->ctx)
        return CU_E_INVALID_HANDLE;
    if (!g->loaded && fake_knob("FAKECUDA_LOADED", 0))
        return CU_E_NOT_PERMITTED;
    l = calloc(1, sizeof *l);
    if (!l)
        return CU_E_OUT_OF_MEMORY;
    l->op.run = launch;
    l->kernel = g->kernel;
    if (!copy_params(l, params)) {
        free(l);
        return CU_E_INVALID_VALUE;
    }
    return fake_push(s, &l->op);
}
