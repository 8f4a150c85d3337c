/* fakegpu.cpp - a device of torch without a GPU: memory, streams and events are those of the CUDA
 * driver that tests/fakecuda imitates, and operators are torch's own for the CPU, run on that
 * memory in the order of the stream (kernels.cpp).
 *
 * It is as unforgiving as a GPU: an operator returns before it has run; memory that is freed is
 * handed out again at once, for what comes later on the same stream; tensors lie in the middle of
 * larger allocations. The default stream is the driver's, the others do not wait for it.
 *
 * What is compiled; it includes the others, as csrc/all.cpp does. */
#include "fakegpu.h"

#include <dlfcn.h>

#include <torch/extension.h>

#include "allocator.cpp"
#include "guard.cpp"
#include "kernels.cpp"

namespace fakegpu
{

namespace
{

cuda load_driver()
{
    const char *path = getenv("COMMD_LIBCUDA");
    cuda cu{};

    cu.library = dlopen(path ? path : "libcuda.so.1", RTLD_NOW);
    TORCH_CHECK(cu.library, "fakegpu: ", dlerror());
#define LOAD(member, symbol, args)                                                                 \
    cu.member = reinterpret_cast<decltype(cu.member)>(dlsym(cu.library, #symbol));                 \
    TORCH_CHECK(cu.member, "fakegpu: no " #symbol);
    CUDA_FUNCTIONS(LOAD)
#undef LOAD
    TORCH_CHECK(cu.init(0) == CU_SUCCESS, "fakegpu: cuInit failed");
    return cu;
}

} // namespace

const cuda &driver()
{
    static const cuda *cu = new cuda(load_driver());

    return *cu;
}

void must(cu_result result, const char *what)
{
    const char *name = "?";

    if (result == CU_SUCCESS)
        return;
    driver().error_name(result, &name);
    TORCH_CHECK(false, "fakegpu: ", what, ": ", name);
}

int device_count()
{
    static const int count = [] {
        int n = 0;
        must(driver().device_count(&n), "cuDeviceGetCount");
        return n;
    }();

    return count;
}

void enter(c10::DeviceIndex index)
{
    static const auto *contexts = [] {
        auto *all = new std::vector<cu_context>(device_count());
        for (int i = 0; i < device_count(); i++)
            must(driver().primary_retain(&(*all)[i], i), "cuDevicePrimaryCtxRetain");
        return all;
    }();

    TORCH_CHECK(index >= 0 && index < device_count(), "fakegpu: no device ", int(index));
    must(driver().ctx_set((*contexts)[index]), "cuCtxSetCurrent");
}

void copy_bytes(void *to, const void *from, size_t bytes, c10::DeviceIndex index)
{
    enter(index);
    if (bytes) {
        must(driver().copy(reinterpret_cast<cu_ptr>(to), reinterpret_cast<cu_ptr>(from), bytes,
                           native(current_stream(index))),
             "cuMemcpyAsync");
    }
}

void synchronize(c10::DeviceIndex index)
{
    enter(index);
    must(driver().stream_synchronize(native(current_stream(index))), "cuStreamSynchronize");
}

} // namespace fakegpu

PYBIND11_MODULE(TORCH_EXTENSION_NAME, m)
{
    namespace py = pybind11;
    using release = py::call_guard<py::gil_scoped_release>;

    m.def("device_count", &fakegpu::device_count);
    m.def("current_device", [] { return int(fakegpu::current_device()); });
    m.def("set_device",
          [](int index) { fakegpu::guard_impl()->setDevice(c10::Device(fakegpu::kType, index)); });
    m.def(
        "synchronize", [](int index) { fakegpu::guard_impl()->synchronizeDevice(index); },
        release());
    m.def("reused", &fakegpu::reused);
    m.def("asynchronous", &fakegpu::asynchronous, "operators run on a stream so far");
    m.def("synchronous", &fakegpu::synchronous, "and those that the host waited for, by name");
}
