/* device.cpp - GPUs as torch describes them: through the interface that each kind of device
 * implements for c10 (DeviceGuardImplInterface). */
#include "device.h"

#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <c10/util/Exception.h>
#include <torch/version.h>

namespace commd
{

namespace
{

template <class S> auto handle_of(const S &stream, int) -> decltype(stream.native_handle())
{
    return stream.native_handle();
}

/* Of a torch that keeps the driver's streams to itself; but stream 0 is the default one. */
template <class S> void *handle_of(const S &stream, long)
{
    TORCH_CHECK_NOT_IMPLEMENTED(stream.id() == 0, "commd: torch ", TORCH_VERSION,
                                " does not tell which CUDA stream ", stream,
                                " is; torch 2.11 does. Call commd on the default stream, or use "
                                "backend=\"cpu:commd,cuda:nccl\"");
    return nullptr;
}

} // namespace

std::optional<at::Device> LastDevice::get() const
{
    int known = known_.load(std::memory_order_relaxed);

    if (known < 0)
        return std::nullopt;
    return at::Device(static_cast<at::DeviceType>(known >> 8),
                      static_cast<at::DeviceIndex>(known & 0xff));
}

std::optional<at::Device> LastDevice::with_index(int64_t index) const
{
    auto last = get();

    for (at::DeviceType type : {last ? last->type() : at::kCUDA, at::kCUDA, at::kPrivateUse1}) {
        if (c10::impl::hasDeviceGuardImpl(type))
            return at::Device(type, static_cast<at::DeviceIndex>(index));
    }
    return std::nullopt;
}

c10::Stream current_stream(const at::Device &device)
{
    return c10::impl::VirtualGuardImpl(device.type()).getStream(device);
}

void *native_handle(const c10::Stream &stream)
{
    return handle_of(stream, 0);
}

c10::Stream SideStreams::of(const at::Device &device)
{
    std::lock_guard<std::mutex> guard(lock_);

    for (const c10::Stream &stream : streams_) {
        if (stream.device() == device)
            return stream;
    }
    streams_.push_back(
        c10::impl::VirtualGuardImpl(device.type()).getStreamFromGlobalPool(device, true));
    return streams_.back();
}

} // namespace commd
