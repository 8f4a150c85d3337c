/* backend.cpp - torch.distributed's backend "commd": what a group is and does beside its
 * operations. c10d has released the GIL before any of this.
 *
 * Each operation (reduce.cpp, move.cpp, p2p.cpp) checks its tensors, becomes a Plan (plan.h) and
 * is executed: on the caller's thread when it is blocking, else on the library's. Between
 * startCoalescing() and endCoalescing() the calls of that thread are collected instead (work.h).
 *
 * The contents of AVG, of wrong sizes between ranks and of the operations' order are the
 * library's business; its errors come out as DistBackendError with the library's text.
 *
 * split(), shrink() and new_group() make ordinary groups, whose members know each other by the
 * group that they are in (found()). It costs the parent nothing and cannot hang in it. Those of
 * merge() meet through the store.
 */
#include "backend.h"
#include "python.h"

#include <algorithm>

#include <c10/core/DeviceGuard.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <c10/util/Exception.h>
#include <c10/util/StringUtil.h>
#include <c10/util/hash.h>

#include "ops.h"
#include "profile.h"

namespace commd
{

ProcessGroupCommd::ProcessGroupCommd(const GroupSpec &spec, std::shared_ptr<Group> joined)
    : Backend(spec.rank, spec.size), group_(joined ? joined : Group::join(spec)),
      store_(spec.store), timeout_(spec.timeout), id_(spec.id), ranks_(spec.ranks),
      meeting_(spec.meeting), reconfigurable_(spec.reconfigurable),
      handle_(c10::str("commd:", getpid(), ":", random_token()))
{
    if (joined) {
        group_->place(id_, rank_, size_, ranks_);
        if (!reconfigurable_)
            group_->set_timeout(timeout_);
    }
    register_group(id_, group_);
}

ProcessGroupCommd::~ProcessGroupCommd()
{
    GilRelease no_gil;

    unregister_group(id_, group_);
    group_->close();
}

c10::intrusive_ptr<c10d::Backend::Options> ProcessGroupCommd::getBackendOptions()
{
    auto options = c10::make_intrusive<OptionsCommd>("commd", timeout_);

#if COMMD_TORCH_SINCE(2, 9)
    options->group_name = id_;
    options->global_ranks_in_group.assign(ranks_.begin(), ranks_.end());
#endif
#ifdef C10D_BACKEND_HAS_RECONFIGURE
    options->enable_reconfigure = reconfigurable_;
#endif
    return options;
}

void ProcessGroupCommd::setTimeout(std::chrono::milliseconds timeout)
{
    timeout = checked_timeout("set_timeout", timeout);
    if (group_->joined())
        group_->set_timeout(timeout);
    timeout_ = timeout;
}

void ProcessGroupCommd::setSequenceNumberForGroup()
{
    /* Nothing to agree on: all members count from 0 when the group is made. */
}

uint64_t ProcessGroupCommd::getSequenceNumberForGroup()
{
    return group_->sequence();
}

#if COMMD_TORCH_SINCE(2, 7)
c10d::ErrorType ProcessGroupCommd::getError()
{
    switch (group_->failure()) {
    case 0:
        return c10d::ErrorType::SUCCESS;
    case COMMD_E_TIMEOUT:
        return c10d::ErrorType::TIMEOUT;
    case COMMD_E_RANK_LOST:
    case COMMD_E_NODE_LOST:
    case COMMD_E_ENGINE_LOST:
        return c10d::ErrorType::REMOTE_ERROR;
    default:
        return c10d::ErrorType::COMM_ERROR;
    }
}
#endif

/* Groups are connected when they are made, but for what their ranks agree upon at the first
 * operation on GPUs, where the host waits for all of them (doc/gpu.md). A program that has named
 * its GPU has that here, where it waits for them anyway, and may begin with its groups in any
 * order. It is not on a stream of the program: what is there may wait for a rank that has yet to
 * come here. */
void ProcessGroupCommd::eagerConnectSingleDevice(at::Device device)
{
    if (!is_gpu(device))
        return;
    Plan plan("barrier", "commd:connect", c10d::OpType::BARRIER, timeout_);
    c10::DeviceGuard guard(device);
    /* see native_handle() */
    c10::StreamGuard on(COMMD_TORCH_SINCE(2, 11)
                            ? side_->of(device)
                            : c10::impl::VirtualGuardImpl(device.type()).getDefaultStream(device));

    plan.numbered = false; /* the program has not called it */
    plan.device = device;
    plan.outputs.push_back(at::empty({1}, at::dtype(at::kByte).device(device)));
    plan.add(COMMD_BARRIER, {COMMD_U8, 0});
    c10::make_intrusive<DeviceWork>(group_, side_, rank_, std::move(plan))->start(false);
    connected_ = device;
}

void ProcessGroupCommd::shutdown()
{
    GilRelease no_gil; /* not all releases of torch have done so */

    unregister_group(id_, group_);
    group_->close();
}

void ProcessGroupCommd::abort()
{
    GilRelease no_gil;

    group_->abort("torch.distributed abort()");
}

void ProcessGroupCommd::waitForPendingWorks()
{
    while (!group_->wait_pending(std::chrono::milliseconds(100))) {
        if (check_signals(nullptr))
            raise_pending();
    }
}

void ProcessGroupCommd::found(GroupSpec &spec, std::vector<int> places) const
{
    std::string token = spec.meeting.empty() ? meeting_ : spec.meeting;

    if (!reconfigurable_ && group_->ours()) { /* else torch's ranks are not those of group_ */
        if (token.empty())
            token = group_->name();
        for (int i = static_cast<int>(places.size()); i < spec.size; i++)
            places.push_back(i); /* the whole world has none */
        spec.parent = group_;
        spec.places = std::move(places);
    }
    if (!token.empty())
        spec.meeting = c10::sha1(c10::str(token, " ", spec.id, " ", c10::Join(",", spec.ranks)))
                           .str()
                           .substr(0, 24);
}

#if COMMD_TORCH_SINCE(2, 9)
static GroupSpec spec_for(const c10::intrusive_ptr<c10d::Store> &store, int rank, size_t size,
                          const c10d::Backend::Options &options)
{
    GroupSpec spec;

    spec.store = store;
    spec.rank = rank;
    spec.size = static_cast<int>(size);
    spec.timeout = checked_timeout("process group", options.timeout);
    spec.id = options.group_name;
    return spec;
}

/* All ranks of this group call it; those that are not in @ranks get no group. */
c10::intrusive_ptr<c10d::Backend>
ProcessGroupCommd::split(const c10::intrusive_ptr<c10d::Store> &store,
                         const std::vector<int> &ranks, const c10::intrusive_ptr<Options> &opts)
{
    auto me = std::find(ranks.begin(), ranks.end(), rank_);

    for (int rank : ranks)
        check_root("split", rank, size_);
    if (me == ranks.end())
        return nullptr;
    GroupSpec spec =
        spec_for(store ? store : store_, static_cast<int>(me - ranks.begin()), ranks.size(), *opts);
    for (int rank : ranks)
        spec.ranks.push_back(ranks_.empty() ? rank : ranks_[rank]);
    found(spec, ranks);
    auto child = c10::make_intrusive<ProcessGroupCommd>(spec);
    if (connected_)
        child->eagerConnectSingleDevice(*connected_);
    return child;
}

/* Called by ranks of groups that have only @store in common. */
c10::intrusive_ptr<c10d::Backend>
ProcessGroupCommd::merge(const c10::intrusive_ptr<c10d::Store> &store,
                         const c10::intrusive_ptr<Options> &opts, const int &rank, const int &size)
{
    check_root("merge", rank, size);
    return c10::make_intrusive<ProcessGroupCommd>(spec_for(store, rank, size, *opts));
}

/* torch.distributed.shrink_group(). Those that stay call it, and know who does: so they need
 * neither the store, whose host may be what was lost, nor the group, which may be broken. What
 * remains of it is for torch to destroy. */
c10::intrusive_ptr<c10d::Backend> ProcessGroupCommd::shrink(const std::vector<int64_t> &excluded,
                                                            int flags,
                                                            const c10::intrusive_ptr<Options> &opts)
{
    GilRelease no_gil;
    GroupSpec spec;
    std::vector<int> places;
    int rank_there = -1;

    for (int rank = 0; rank < size_; rank++) {
        if (std::find(excluded.begin(), excluded.end(), rank) != excluded.end())
            continue;
        if (rank == rank_)
            rank_there = static_cast<int>(spec.ranks.size());
        places.push_back(rank);
        spec.ranks.push_back(ranks_.empty() ? rank : ranks_[rank]);
    }
    TORCH_CHECK_VALUE(rank_there >= 0, "commd: shrink: this rank is among the excluded ones");
    if (flags & 1) /* SHRINK_ABORT of distributed_c10d.py */
        group_->abort("torch.distributed.shrink_group()");
    spec.store = store_;
    spec.rank = rank_there;
    spec.size = static_cast<int>(spec.ranks.size());
    spec.timeout = opts ? checked_timeout("process group", opts->timeout) : timeout_;
    spec.id = id_;
    /* A default group that has gone on has the same name in each job. */
    spec.meeting = (meeting_.empty() ? group_->name() : meeting_) + " shrinks";
    found(spec, std::move(places));
    auto child = c10::make_intrusive<ProcessGroupCommd>(spec);
    if (connected_)
        child->eagerConnectSingleDevice(*connected_);
    return child;
}
#endif

void ProcessGroupCommd::startCoalescing()
{
    abandonCoalescing(); /* an exception may have kept the last section from its end */
    std::lock_guard<std::mutex> guard(batch_lock_);
    batch_ = std::make_shared<Batch>(group_, rank_);
    coalescing_.store(true, std::memory_order_relaxed);
}

void ProcessGroupCommd::abandonCoalescing()
{
    std::shared_ptr<Batch> old;
    std::shared_ptr<DeviceBatch> old_on_device;
    {
        std::lock_guard<std::mutex> guard(batch_lock_);
        old = std::exchange(batch_, nullptr);
        old_on_device = std::exchange(device_batch_, nullptr);
        coalescing_.store(false, std::memory_order_relaxed);
    }
    if (old)
        old->abandon();
    if (old_on_device)
        old_on_device->abandon();
}

WorkPtr ProcessGroupCommd::endCoalescing()
{
    std::shared_ptr<Batch> batch;
    std::shared_ptr<DeviceBatch> on_device;
    {
        std::lock_guard<std::mutex> guard(batch_lock_);
        batch = std::move(batch_);
        batch_.reset();
        on_device = std::exchange(device_batch_, nullptr);
        coalescing_.store(false, std::memory_order_relaxed);
    }
    TORCH_CHECK(batch, "commd: endCoalescing() without startCoalescing()");
    if (on_device) {
        if (auto work = on_device->submit())
            return work;
    }
    return batch->submit();
}

static constexpr const char *kOneDevice =
    "commd: a coalesced section takes tensors of one device, got some on the CPU and some on a GPU";

WorkPtr ProcessGroupCommd::execute(Plan plan, bool sync)
{
    free_retired_works();
    if (C10_UNLIKELY(!group_->recorded()->described()))
        group_->recorded()->describe(getGroupDesc());
    if (C10_UNLIKELY(reconfigurable_))
        check_stands();
    std::optional<ParamComms> range;
    if (C10_UNLIKELY(profiled()))
        range.emplace(*group_->recorded(), plan, rank_, size_, sync);
    if (C10_UNLIKELY(plan.device && !plan.device->is_cpu()))
        return execute_on_device(std::move(plan), sync);
    auto work = c10::make_intrusive<WorkCommd>(group_, rank_, std::move(plan));

    if (C10_UNLIKELY(coalescing_.load(std::memory_order_relaxed))) {
        std::lock_guard<std::mutex> guard(batch_lock_);
        if (batch_ && batch_->mine()) {
            TORCH_CHECK(!device_batch_, kOneDevice);
            if (!batch_->add(batch_, work)) { /* submitted by somebody who waited */
                batch_ = std::make_shared<Batch>(group_, rank_);
                batch_->add(batch_, work);
            }
            return work;
        }
    }
    if (sync)
        work->run();
    else
        work->start();
    return work;
}

WorkPtr ProcessGroupCommd::execute_on_device(Plan plan, bool sync)
{
    if (plan.numbered)
        last_device_.note(*plan.device);
    auto work = c10::make_intrusive<DeviceWork>(group_, side_, rank_, std::move(plan));

    if (C10_UNLIKELY(coalescing_.load(std::memory_order_relaxed))) {
        std::lock_guard<std::mutex> guard(batch_lock_);
        if (batch_ && batch_->mine()) {
            TORCH_CHECK(batch_->empty(), kOneDevice);
            if (!device_batch_ || !device_batch_->add(device_batch_, work)) {
                device_batch_ = std::make_shared<DeviceBatch>(group_, side_, rank_);
                device_batch_->add(device_batch_, work);
            }
            return work;
        }
    }
    work->start(sync);
    return work;
}

} // namespace commd
