/* backend.h - torch.distributed's backend "commd". See backend.cpp for the model. */
#pragma once

#include <memory>
#include <string>
#include <vector>

#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/version.h>

#include "group.h"
#include "work.h"

/* `override` for virtuals that older torch versions lack. Only names that have been there since
 * they were introduced are overridden: 2.14's all_gather_single and its kin fall back to them. */
#define COMMD_TORCH_SINCE(major, minor) \
    (TORCH_VERSION_MAJOR > (major) ||   \
     (TORCH_VERSION_MAJOR == (major) && TORCH_VERSION_MINOR >= (minor)))
#if COMMD_TORCH_SINCE(2, 7)
#define COMMD_OVERRIDE_2_7 override
#else
#define COMMD_OVERRIDE_2_7
#endif
#if COMMD_TORCH_SINCE(2, 9)
#define COMMD_OVERRIDE_2_9 override
#else
#define COMMD_OVERRIDE_2_9
#endif

namespace commd {

using c10d::Work;
using Tensors = std::vector<at::Tensor>;
using TensorLists = std::vector<std::vector<at::Tensor>>;
using WorkPtr = c10::intrusive_ptr<Work>;

class ProcessGroupCommd : public c10d::Backend {
 public:
    /* Joins the group; collective over its members. */
    explicit ProcessGroupCommd(const GroupSpec &spec);
    ~ProcessGroupCommd() override;

    const std::string getBackendName() const override
    {
        return "commd";
    }
    c10::intrusive_ptr<Options> getBackendOptions() COMMD_OVERRIDE_2_9;
    void setTimeout(std::chrono::milliseconds timeout) COMMD_OVERRIDE_2_9;
    void setSequenceNumberForGroup() override;
    uint64_t getSequenceNumberForGroup() override;
#if COMMD_TORCH_SINCE(2, 9)
    c10d::ErrorType getError() override;
#endif
    void shutdown() COMMD_OVERRIDE_2_7;
    void abort() COMMD_OVERRIDE_2_7;

    WorkPtr allreduce(Tensors &tensors, const c10d::AllreduceOptions &opts) override;
    WorkPtr allreduce_coalesced(Tensors &tensors,
                                const c10d::AllreduceCoalescedOptions &opts) override;
    WorkPtr broadcast(Tensors &tensors, const c10d::BroadcastOptions &opts) override;
    WorkPtr allgather(TensorLists &outputs, Tensors &inputs,
                      const c10d::AllgatherOptions &opts) override;
    WorkPtr _allgather_base(at::Tensor &output, at::Tensor &input,
                            const c10d::AllgatherOptions &opts) override;
    WorkPtr allgather_coalesced(TensorLists &outputs, Tensors &inputs,
                                const c10d::AllgatherOptions &opts) override;
    WorkPtr allgather_into_tensor_coalesced(Tensors &outputs, Tensors &inputs,
                                            const c10d::AllgatherOptions &opts) override;
    WorkPtr reduce_scatter(Tensors &outputs, TensorLists &inputs,
                           const c10d::ReduceScatterOptions &opts) override;
    WorkPtr _reduce_scatter_base(at::Tensor &output, at::Tensor &input,
                                 const c10d::ReduceScatterOptions &opts) override;
    WorkPtr reduce_scatter_tensor_coalesced(Tensors &outputs, Tensors &inputs,
                                            const c10d::ReduceScatterOptions &opts) override;
    WorkPtr barrier(const c10d::BarrierOptions &opts) override;

    /* Not there yet: each raises and says its name. */
    WorkPtr allreduce_sparse(Tensors &, const c10d::AllreduceOptions &) override;
    WorkPtr reduce(Tensors &, const c10d::ReduceOptions &) override;
    WorkPtr gather(TensorLists &, Tensors &, const c10d::GatherOptions &) override;
    WorkPtr scatter(Tensors &, TensorLists &, const c10d::ScatterOptions &) override;
    WorkPtr alltoall(Tensors &, Tensors &, const c10d::AllToAllOptions &) override;
    WorkPtr alltoall_base(at::Tensor &, at::Tensor &, std::vector<int64_t> &,
                          std::vector<int64_t> &, const c10d::AllToAllOptions &) override;
    WorkPtr send(Tensors &, int, int) override;
    WorkPtr recv(Tensors &, int, int) override;
    WorkPtr recvAnysource(Tensors &, int) override;
    void monitoredBarrier(const c10d::BarrierOptions &, bool) override;

 private:
    void add_all_reduce(Plan &plan, const at::Tensor &tensor, int redop, int64_t timeout_ms);
    void add_all_gather(Plan &plan, const at::Tensor &output, at::Tensor input,
                        int64_t timeout_ms);
    void add_all_gather_list(Plan &plan, const Tensors &outputs, const at::Tensor &input,
                             int64_t timeout_ms);
    void add_reduce_scatter(Plan &plan, const at::Tensor &output, at::Tensor input, int redop,
                            int64_t timeout_ms);
    WorkPtr execute(Plan plan, bool sync);

    const std::shared_ptr<Group> group_;
    std::chrono::milliseconds timeout_;
    const std::string id_;
    const std::vector<int64_t> ranks_;
};

} // namespace commd
