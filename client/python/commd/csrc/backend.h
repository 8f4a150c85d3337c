/* backend.h - torch.distributed's backend "commd". See backend.cpp for the model. */
#pragma once

#include <memory>
#include <set>
#include <string>
#include <vector>

#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <torch/version.h>

#include "device_work.h"
#include "group.h"
#include "work.h"

/* What older torch versions lack. A virtual of a newer version is declared here without
 * `override`, so that it is an ordinary method where the base has none. Only names that have been
 * there since they were introduced are overridden: 2.14's all_gather_single and its kin fall back
 * to them. */
#define COMMD_TORCH_SINCE(major, minor)                                                            \
    (TORCH_VERSION_MAJOR > (major) ||                                                              \
     (TORCH_VERSION_MAJOR == (major) && TORCH_VERSION_MINOR >= (minor)))

namespace commd
{

using c10d::Work;
using Tensors = std::vector<at::Tensor>;
using TensorLists = std::vector<std::vector<at::Tensor>>;
using WorkPtr = c10::intrusive_ptr<Work>;

/* A type of ours, because torch copies the options of a group that it splits, and its own cannot be
 * copied. */
struct OptionsCommd : c10d::Backend::Options {
    using Options::Options;
};

class ProcessGroupCommd : public c10d::Backend
{
  public:
    /* Joins the group; collective over its members. @joined: it has, see Group::rejoin() and
     * Group::unjoined(). */
    explicit ProcessGroupCommd(const GroupSpec &spec, std::shared_ptr<Group> joined = nullptr);
    ~ProcessGroupCommd() override;

    const std::string getBackendName() const override
    {
        return "commd";
    }
    bool supportsSplitting() const
    {
        return true;
    }
    bool supportsCoalescing() const
    {
        return true;
    }
    c10::intrusive_ptr<Options> getBackendOptions();
    void setTimeout(std::chrono::milliseconds timeout);
    void setSequenceNumberForGroup() override;
    uint64_t getSequenceNumberForGroup() override;
#if COMMD_TORCH_SINCE(2, 7)
    c10d::ErrorType getError();
#endif
    void eagerConnectSingleDevice(at::Device device) override;
    void shutdown();
    void abort();
    void waitForPendingWorks() override;
#if COMMD_TORCH_SINCE(2, 9)
    c10::intrusive_ptr<Backend> split(const c10::intrusive_ptr<c10d::Store> &store,
                                      const std::vector<int> &ranks,
                                      const c10::intrusive_ptr<Options> &opts) override;
    c10::intrusive_ptr<Backend> merge(const c10::intrusive_ptr<c10d::Store> &store,
                                      const c10::intrusive_ptr<Options> &opts, const int &rank,
                                      const int &size) override;
    bool supportsShrinking() const
    {
        return true;
    }
    c10::intrusive_ptr<Backend> shrink(const std::vector<int64_t> &excluded, int flags,
                                       const c10::intrusive_ptr<Options> &opts);
#endif

    /* recover.cpp */
    Epoch recover(c10d::ProcessGroup &pg, const RecoverySpec &spec);
#ifdef C10D_BACKEND_HAS_RECONFIGURE
    /* reconfigure.cpp */
    bool supportsReconfigure() const override
    {
        return true;
    }
    c10d::ReconfigureHandle get_reconfigure_handle() const override;
    WorkPtr reconfigure(const c10d::ReconfigureOptions &opts) override;
#endif
#ifdef C10D_BACKEND_HAS_HOOKS
    bool supportsAbortHooks() const /* virtual since 2.15, whose health check asks for it */
    {
        return true;
    }
    void registerAbortHook(int64_t id, c10d::AbortHook hook) override
    {
        group_->set_hook(id, std::move(hook));
    }
    void unregisterAbortHook(int64_t id) override
    {
        group_->set_hook(id, nullptr);
    }
#endif
    Epoch epoch()
    {
        return group_->epoch();
    }
    /* @ranks: the global ones of the members; empty for the whole world. */
    void place(std::vector<int64_t> ranks);
    /* Collective: groups that are made from now on meet without a store. */
    void agree_on_meeting();
    const std::string &meeting() const
    {
        return meeting_;
    }
    /* Of a group of the ranks @places of this one. */
    void found(GroupSpec &spec, std::vector<int> places) const;
    void set_meeting(std::string meeting)
    {
        meeting_ = std::move(meeting);
    }
    bool stands()
    {
        return !group_->failure();
    }

    void startCoalescing() override;
    WorkPtr endCoalescing() override;
    /* The section has ended with an exception: what was collected fails. */
    void abandonCoalescing();

    /* reduce.cpp */
    WorkPtr allreduce(Tensors &tensors, const c10d::AllreduceOptions &opts) override;
    WorkPtr allreduce_coalesced(Tensors &tensors,
                                const c10d::AllreduceCoalescedOptions &opts) override;
    WorkPtr reduce(Tensors &tensors, const c10d::ReduceOptions &opts) override;
    WorkPtr reduce_scatter(Tensors &outputs, TensorLists &inputs,
                           const c10d::ReduceScatterOptions &opts) override;
    WorkPtr _reduce_scatter_base(at::Tensor &output, at::Tensor &input,
                                 const c10d::ReduceScatterOptions &opts) override;
    WorkPtr reduce_scatter_tensor_coalesced(Tensors &outputs, Tensors &inputs,
                                            const c10d::ReduceScatterOptions &opts) override;

    /* sparse.cpp */
    WorkPtr allreduce_sparse(Tensors &tensors, const c10d::AllreduceOptions &opts) override;

    /* move.cpp */
    WorkPtr broadcast(Tensors &tensors, const c10d::BroadcastOptions &opts) override;
    WorkPtr allgather(TensorLists &outputs, Tensors &inputs,
                      const c10d::AllgatherOptions &opts) override;
    WorkPtr _allgather_base(at::Tensor &output, at::Tensor &input,
                            const c10d::AllgatherOptions &opts) override;
    WorkPtr allgather_coalesced(TensorLists &outputs, Tensors &inputs,
                                const c10d::AllgatherOptions &opts) override;
    WorkPtr allgather_into_tensor_coalesced(Tensors &outputs, Tensors &inputs,
                                            const c10d::AllgatherOptions &opts) override;
    WorkPtr gather(TensorLists &outputs, Tensors &inputs, const c10d::GatherOptions &opts) override;
    WorkPtr gather_single(at::Tensor &output, at::Tensor &input,
                          const c10d::GatherOptions &opts); /* virtual since 2.14 */
    WorkPtr scatter(Tensors &outputs, TensorLists &inputs,
                    const c10d::ScatterOptions &opts) override;
    WorkPtr alltoall(Tensors &outputs, Tensors &inputs, const c10d::AllToAllOptions &opts) override;
    WorkPtr alltoall_base(at::Tensor &output, at::Tensor &input,
                          std::vector<int64_t> &output_splits, std::vector<int64_t> &input_splits,
                          const c10d::AllToAllOptions &opts) override;
    WorkPtr barrier(const c10d::BarrierOptions &opts) override;

    /* p2p.cpp */
    WorkPtr send(Tensors &tensors, int dest, int tag) override;
    WorkPtr recv(Tensors &tensors, int source, int tag) override;
    WorkPtr recvAnysource(Tensors &tensors, int tag) override;
    void monitoredBarrier(const c10d::BarrierOptions &opts, bool wait_all_ranks) override;

  private:
    void become(int rank, int size);
    void check_stands();
    void add_all_reduce(Plan &plan, const at::Tensor &tensor, const Redop &redop);
    void add_reduce_scatter(Plan &plan, const at::Tensor &output, const at::Tensor &input,
                            const Redop &redop);
    void add_all_gather(Plan &plan, const at::Tensor &output, const at::Tensor &input);
    void add_all_gather_list(Plan &plan, const Tensors &outputs, const at::Tensor &input);
    WorkPtr execute(Plan plan, bool sync);
    WorkPtr execute_on_device(Plan plan, bool sync);
    WorkPtr point_to_point(Plan plan, commd_coll coll, Tensors &tensors, int peer, int tag);

    void report_missing(const std::vector<bool> &came, std::chrono::milliseconds timeout,
                        bool wait_all_ranks);
    void wait_for_verdict(uint64_t round);

    const std::shared_ptr<Group> group_;
    const c10::intrusive_ptr<c10d::Store> store_;
    std::chrono::milliseconds timeout_;
    const std::string id_;
    std::vector<int64_t> ranks_;  /* global ones; empty for the whole world */
    std::string meeting_;         /* see GroupSpec; empty: store_ serves */
    bool reconfigurable_ = false; /* see reconfigure.cpp */
    std::string handle_;          /* too: of this rank */
    std::set<int64_t> uuids_;     /* too: that were used */

    std::atomic<uint64_t> monitored_{0};  /* monitored barriers so far */
    std::atomic<bool> coalescing_{false}; /* is there a batch_? */
    std::mutex batch_lock_;
    std::shared_ptr<Batch> batch_;
    std::shared_ptr<DeviceBatch> device_batch_; /* the same section, if it is on a GPU */
    LastDevice last_device_;                    /* of the collectives on GPUs */
    std::optional<at::Device> connected_;       /* the GPU that the program has named */
    const std::shared_ptr<SideStreams> side_ = std::make_shared<SideStreams>();
};

/* Older torch versions have no asyncOp in some options: then every call is asynchronous, and
 * dist.* waits for it. */
template <class Opts, class = void> struct Sync {
    static bool of(const Opts &)
    {
        return false;
    }
};
template <class Opts> struct Sync<Opts, std::void_t<decltype(std::declval<Opts>().asyncOp)>> {
    static bool of(const Opts &opts)
    {
        return !opts.asyncOp;
    }
};
template <class Opts> bool is_sync(const Opts &opts)
{
    return Sync<Opts>::of(opts);
}

} // namespace commd
