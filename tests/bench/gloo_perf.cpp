/* gloo_perf.cpp - commd-perf over gloo itself, without torch: the all_reduce of gloo alone, in the
 * clear or over TLS, which torch's wheels have not built in. compare.py builds it with the gloo in
 * Horovod's sources.
 *
 *   gloo_perf ALGORITHM all_reduce ...    RANK, WORLD_SIZE, GLOO_STORE (an empty folder) and
 *                                         GLOO_SOCKET_IFNAME say the rest
 *
 * ALGORITHM is ring or bcube. GLOO_DEVICE_TRANSPORT=TCP_TLS, and ..._TCP_TLS_PKEY, _CERT and
 * _CA_FILE, as torch's gloo has them. */
#include <csignal>
#include <cstdarg>
#include <string>

#include "gloo/allreduce.h"
#include "gloo/barrier.h"
#include "gloo/math.h"
#include "gloo/rendezvous/context.h"
#include "gloo/rendezvous/file_store.h"
#include "gloo/transport/tcp/device.h"
#include "gloo/transport/tcp/tls/device.h"

#define _Static_assert static_assert
extern "C" {
#include "client/perf/commd_perf.h"
}

namespace
{

using Function = void (*)(void *, const void *, const void *, size_t);

volatile std::sig_atomic_t interrupted; /* never: who started us kills us */

struct Library {
    std::shared_ptr<gloo::rendezvous::Context> context;
    gloo::AllreduceOptions::Algorithm algorithm;
    int rank, size;
};

const char *need(const char *name)
{
    const char *value = getenv(name);

    if (!value) {
        fprintf(stderr, "gloo_perf: error: %s is not set\n", name);
        exit(PERF_USAGE);
    }
    return value;
}

std::shared_ptr<gloo::transport::Device> device()
{
    const char *transport = getenv("GLOO_DEVICE_TRANSPORT");
    gloo::transport::tcp::attr attr;

    attr.iface = need("GLOO_SOCKET_IFNAME");
    if (transport && !strcmp(transport, "TCP_TLS"))
        return gloo::transport::tcp::tls::CreateDevice(
            attr, need("GLOO_DEVICE_TRANSPORT_TCP_TLS_PKEY"),
            need("GLOO_DEVICE_TRANSPORT_TCP_TLS_CERT"),
            need("GLOO_DEVICE_TRANSPORT_TCP_TLS_CA_FILE"), "");
    return gloo::transport::tcp::CreateDevice(attr);
}

template <typename T> void reduce_with(Library *lib, T *values, size_t n, Function function)
{
    gloo::AllreduceOptions options(lib->context);

    options.setOutput(values, n);
    options.setAlgorithm(lib->algorithm);
    options.setReduceFunction(function);
    gloo::allreduce(options);
}

/* What gloo throws must not pass through C. */
template <typename Body> int guarded(Body body)
{
    try {
        body();
        return 0;
    } catch (const std::exception &why) {
        fprintf(stderr, "gloo_perf: error: %s\n", why.what());
        return -1;
    }
}

int prepare(void *arg, const struct commd_op *op)
{
    (void)arg;
    if (op->coll == COMMD_ALL_REDUCE && op->dtype == COMMD_F32 && op->redop == COMMD_SUM)
        return 0;
    fprintf(stderr, "gloo_perf: only all_reduce, f32, sum\n");
    return PERF_USAGE;
}

int barrier(void *arg)
{
    return guarded([&] {
        gloo::BarrierOptions options(static_cast<Library *>(arg)->context);
        gloo::barrier(options);
    });
}

int run(void *arg, const struct commd_op *op)
{
    return guarded([&] {
        reduce_with(static_cast<Library *>(arg), static_cast<float *>(op->recv), op->count,
                    &gloo::sum<float>);
    });
}

int reduce(void *arg, uint64_t *values, size_t n, int redop)
{
    Function function = &gloo::sum<uint64_t>;

    if (redop == COMMD_MIN)
        function = &gloo::min<uint64_t>;
    else if (redop == COMMD_MAX)
        function = &gloo::max<uint64_t>;
    else
        assert(redop == COMMD_SUM);
    return guarded([&] { reduce_with(static_cast<Library *>(arg), values, n, function); });
}

void failed(void *arg, const char *what)
{
    perf_complain(static_cast<Library *>(arg)->rank, "%s failed", what);
}

int measure(Library *lib, const struct perf *perf)
{
    struct perf_library library = {};
    struct perf_loop loop = {};

    library.prepare = prepare;
    library.barrier = barrier;
    library.run = run;
    library.reduce = reduce;
    library.failed = failed;
    loop.perf = perf;
    loop.library = &library;
    loop.arg = lib;
    loop.rank = lib->rank;
    loop.size = lib->size;
    loop.interrupted = &interrupted;
    return perf_take_turns(&loop);
}

} /* namespace */

extern "C" size_t commd_dtype_size(int dtype)
{
    assert(dtype == COMMD_F32);
    return sizeof(float);
}

extern "C" void perf_complain(int rank, const char *format, ...)
{
    va_list ap;

    fprintf(stderr, "gloo_perf: rank %d: ", rank);
    va_start(ap, format);
    vfprintf(stderr, format, ap);
    va_end(ap);
    fputc('\n', stderr);
}

int main(int argc, char **argv)
{
    struct perf perf;
    Library lib;
    int r;

    if (argc < 3)
        return PERF_USAGE;
    lib.algorithm = strcmp(argv[1], "bcube") ? gloo::AllreduceOptions::Algorithm::RING
                                             : gloo::AllreduceOptions::Algorithm::BCUBE;
    lib.rank = atoi(need("RANK"));
    lib.size = atoi(need("WORLD_SIZE"));
    r = perf_parse(argc - 1, argv + 1, &perf);
    if (r >= 0)
        return r;
    if (!perf.turns)
        return PERF_USAGE;
    r = guarded([&] {
        gloo::rendezvous::FileStore store(need("GLOO_STORE"));
        auto dev = device();

        lib.context = std::make_shared<gloo::rendezvous::Context>(lib.rank, lib.size);
        lib.context->connectFullMesh(store, dev);
    });
    return r ? PERF_FAILED : measure(&lib, &perf);
}
