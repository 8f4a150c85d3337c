/* guard.cpp - devices, streams and events of the driver, as c10 wants them. */
#include "fakegpu.h"

#include <map>
#include <mutex>
#include <vector>

#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>

namespace fakegpu
{

namespace
{

constexpr int kDevices = 16, kStreams = 8; /* of a pool */

thread_local c10::DeviceIndex device_here = 0;
thread_local c10::StreamId streams_here[kDevices]; /* 0: the default one */

c10::Stream to_stream(c10::DeviceIndex index, c10::StreamId id)
{
    return c10::Stream(c10::Stream::UNSAFE, c10::Device(kType, index), id);
}

cu_event to_event(void *event)
{
    return static_cast<cu_event>(event);
}

class Guard final : public c10::impl::DeviceGuardImplInterface
{
  public:
    c10::DeviceType type() const override
    {
        return kType;
    }
    c10::Device exchangeDevice(c10::Device device) const override
    {
        c10::Device before = getDevice();
        setDevice(device);
        return before;
    }
    c10::Device getDevice() const override
    {
        return c10::Device(kType, device_here);
    }
    void setDevice(c10::Device device) const override
    {
        if (!device.has_index())
            return;
        enter(device.index());
        device_here = device.index();
    }
    void uncheckedSetDevice(c10::Device device) const noexcept override
    {
        if (device.has_index())
            device_here = device.index();
    }
    c10::Stream getStream(c10::Device device) const override
    {
        return current_stream(device.has_index() ? device.index() : device_here);
    }
    c10::Stream getDefaultStream(c10::Device device) const override
    {
        return to_stream(device.has_index() ? device.index() : device_here, 0);
    }
    c10::Stream getStreamFromGlobalPool(c10::Device device, bool) const override
    {
        return next_stream(device.has_index() ? device.index() : device_here);
    }
    c10::Stream getNewStream(c10::Device device, int) const override
    {
        return next_stream(device.has_index() ? device.index() : device_here);
    }
    c10::Stream exchangeStream(c10::Stream stream) const override
    {
        return set_current_stream(stream);
    }
    void *getStreamNativeHandle(const c10::Stream stream) const override
    {
        return native(stream);
    }
    c10::DeviceIndex deviceCount() const noexcept override
    {
        return static_cast<c10::DeviceIndex>(device_count());
    }
    bool queryStream(const c10::Stream &stream) const override
    {
        enter(stream.device_index());
        return driver().stream_query(native(stream)) == CU_SUCCESS;
    }
    void synchronizeStream(const c10::Stream &stream) const override
    {
        enter(stream.device_index());
        must(driver().stream_synchronize(native(stream)), "cuStreamSynchronize");
    }
    bool isStreamCapturing(const c10::Stream &stream) const // torch 2.11 does not ask
    {
        int status = 0;
        enter(stream.device_index());
        must(driver().stream_capturing(native(stream), &status), "cuStreamIsCapturing");
        return status;
    }
    void synchronizeDevice(const c10::DeviceIndex index) const override
    {
        enter(index < 0 ? device_here : index);
        must(driver().ctx_synchronize(), "cuCtxSynchronize");
    }

    void record(void **event, const c10::Stream &stream, const c10::DeviceIndex,
                const c10::EventFlag) const override
    {
        enter(stream.device_index());
        if (!*event) {
            cu_event fresh;
            must(driver().event_new(&fresh, CU_EVENT_DISABLE_TIMING), "cuEventCreate");
            *event = fresh;
        }
        must(driver().event_record(to_event(*event), native(stream)), "cuEventRecord");
    }
    void block(void *event, const c10::Stream &stream) const override
    {
        enter(stream.device_index());
        if (event)
            must(driver().stream_wait_event(native(stream), to_event(event), 0),
                 "cuStreamWaitEvent");
    }
    bool queryEvent(void *event) const override
    {
        return !event || driver().event_query(to_event(event)) == CU_SUCCESS;
    }
    void synchronizeEvent(void *event) const override
    {
        if (event)
            must(driver().event_synchronize(to_event(event)), "cuEventSynchronize");
    }
    void destroyEvent(void *event, const c10::DeviceIndex) const noexcept override
    {
        if (event)
            driver().event_free(to_event(event));
    }
    void recordDataPtrOnStream(const c10::DataPtr &data, const c10::Stream &stream) const override
    {
        record_stream(data, stream);
    }
};

/* Host memory that the driver knows. */
class Pinned final : public c10::Allocator
{
  public:
    c10::DataPtr allocate(size_t bytes) override
    {
        void *memory = nullptr;

        enter(device_here);
        if (bytes)
            must(driver().host_alloc(&memory, bytes, CU_HOST_PORTABLE), "cuMemHostAlloc");
        std::lock_guard<std::mutex> guard(lock_);
        if (bytes)
            ranges_[static_cast<char *>(memory)] = bytes;
        return {memory, memory, &release, c10::Device(at::kCPU)};
    }
    c10::DeleterFnPtr raw_deleter() const override
    {
        return &release;
    }
    void copy_data(void *to, const void *from, std::size_t bytes) const override
    {
        default_copy_data(to, from, bytes);
    }
    bool holds(const void *memory)
    {
        std::lock_guard<std::mutex> guard(lock_);
        auto *at = static_cast<char *>(const_cast<void *>(memory));
        auto after = ranges_.upper_bound(at);

        return after != ranges_.begin() && at < std::prev(after)->first + std::prev(after)->second;
    }

  private:
    static void release(void *memory);

    std::mutex lock_;
    std::map<char *, size_t> ranges_;
};

Pinned &pinned()
{
    static auto *all = new Pinned;

    return *all;
}

void Pinned::release(void *memory)
{
    std::lock_guard<std::mutex> guard(pinned().lock_);

    if (!memory)
        return;
    pinned().ranges_.erase(static_cast<char *>(memory));
    enter(device_here);
    driver().host_free(memory);
}

struct Hooks final : at::PrivateUse1HooksInterface {
    bool isBuilt() const override
    {
        return true;
    }
    bool isAvailable() const override
    {
        return device_count() > 0;
    }
    bool hasPrimaryContext(c10::DeviceIndex) const override
    {
        return true;
    }
    c10::DeviceIndex deviceCount() const override
    {
        return static_cast<c10::DeviceIndex>(device_count());
    }
    c10::DeviceIndex getCurrentDevice() const override
    {
        return device_here;
    }
    void setCurrentDevice(c10::DeviceIndex index) const override
    {
        enter(index);
        device_here = index;
    }
    c10::DeviceIndex exchangeDevice(c10::DeviceIndex index) const override
    {
        c10::DeviceIndex before = device_here;
        if (index >= 0)
            setCurrentDevice(index);
        return before;
    }
    c10::DeviceIndex maybeExchangeDevice(c10::DeviceIndex index) const override
    {
        return exchangeDevice(index);
    }
    at::Allocator *getPinnedMemoryAllocator() const override
    {
        return &pinned();
    }
    bool isPinnedPtr(const void *memory) const override
    {
        return pinned().holds(memory);
    }
    void resizePrivateUse1Bytes(const c10::Storage &storage, size_t bytes) const override
    {
        c10::DataPtr fresh = allocator()->allocate(bytes);
        copy_bytes(fresh.get(), storage.data(), std::min(bytes, storage.nbytes()), device_here);
        storage.set_data_ptr_noswap(std::move(fresh));
        storage.set_nbytes(bytes);
    }
};

const c10::impl::DeviceGuardImplInterface *guard_impl()
{
    static const auto *guard = new Guard;

    return guard;
}

const c10::impl::DeviceGuardImplRegistrar registrar(kType, guard_impl());
const bool hooked = [] {
    at::RegisterPrivateUse1HooksInterface(new Hooks);
    return true;
}();

} // namespace

cu_stream native(const c10::Stream &stream)
{
    return reinterpret_cast<cu_stream>(stream.id());
}

c10::DeviceIndex current_device()
{
    return device_here;
}

c10::Stream current_stream(c10::DeviceIndex index)
{
    return to_stream(index, streams_here[index]);
}

c10::Stream set_current_stream(c10::Stream stream)
{
    c10::Stream before = current_stream(stream.device_index());

    streams_here[stream.device_index()] = stream.id();
    return before;
}

c10::Stream next_stream(c10::DeviceIndex index)
{
    static std::mutex lock;
    static std::vector<cu_stream> pools[kDevices];
    static unsigned turn;
    std::lock_guard<std::mutex> guard(lock);
    auto &pool = pools[index];

    enter(index);
    if (pool.empty()) {
        pool.resize(kStreams);
        for (cu_stream &stream : pool)
            must(driver().stream_new(&stream, CU_STREAM_NON_BLOCKING), "cuStreamCreate");
        enter(device_here);
    }
    return to_stream(index, reinterpret_cast<c10::StreamId>(pool[turn++ % kStreams]));
}

} // namespace fakegpu
