/* device.h - GPUs as torch describes them without CUDA's headers: this backend is compiled beside
 * any build of torch and runs beside the CUDA one. See device.cpp. */
#pragma once

#include <atomic>
#include <mutex>
#include <optional>
#include <vector>

#include <ATen/ATen.h>
#include <c10/core/Stream.h>

namespace commd
{

/* Memory that libcommd takes for a GPU's: torch's own, or that of a device that plugs into torch
 * and whose streams are CUDA's. */
inline bool is_gpu(const at::Device &device)
{
    return device.is_cuda() || device.is_privateuseone();
}

c10::Stream current_stream(const at::Device &device);
/* The driver's: what commd_op.stream takes. Throws where torch does not tell it. */
void *native_handle(const c10::Stream &stream);

/* Which GPU a group has used last. */
class LastDevice
{
  public:
    void note(const at::Device &device)
    {
        known_.store(static_cast<int>(device.type()) << 8 | static_cast<uint8_t>(device.index()),
                     std::memory_order_relaxed);
    }
    void forget()
    {
        known_.store(-1, std::memory_order_relaxed);
    }
    std::optional<at::Device> get() const;
    /* @index of this kind, or, where none was used, of the one that there is. */
    std::optional<at::Device> with_index(int64_t index) const;

  private:
    std::atomic<int> known_{-1};
};

/* The streams of a process group on which the futures of its works are completed: one per device,
 * so that nothing else waits behind them. */
class SideStreams
{
  public:
    c10::Stream of(const at::Device &device);

  private:
    std::mutex lock_;
    std::vector<c10::Stream> streams_;
};

} // namespace commd
