/* device_work.h - a call on tensors of a GPU, as torch sees it. See device_work.cpp for the
 * model. */
#pragma once

#include <atomic>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include <c10/core/Event.h>
#include <torch/csrc/distributed/c10d/Work.hpp>

#include "callbacks.h"
#include "device.h"
#include "group.h"
#include "plan.h"
#include "work.h"

namespace commd
{

/* What libcommd was given at once: one call, or those of a coalesced section. Owned by the works
 * that stand for it, and by the library until it is done. */
class Submission : public Left
{
  public:
    /* @records: of its parts, in the flight recorder. */
    Submission(std::shared_ptr<Group> group, Plan plan, std::vector<RecordId> records);
    ~Submission() override;

    /* Enqueues it behind what the current stream has been given. Throws what is wrong with it, or
     * what an earlier one failed with that nobody was told. */
    void start(const std::shared_ptr<Submission> &self);
    /* In the flight recorder. */
    void note_end(const char *error) const;
    /* @stream waits for it; the host does not. Throws what it has failed with. */
    void order(const c10::Stream &stream);
    /* The host waits. Throws what it has failed with, or that it is late. */
    void wait_on_host(const std::string &who, std::chrono::milliseconds timeout);
    /* Nobody may look again: what it fails with is told by the next call in the group. */
    static void leave(const std::shared_ptr<Submission> &self);
    bool ended() const override
    {
        return done();
    }
    void settle() override;

    /* It may be so a little before the library says it by on_done(). */
    bool done() const
    {
        return done_.load(std::memory_order_acquire) ||
               (handle_ && commd_work_test(handle_, nullptr));
    }
    /* NULL: none so far. */
    std::exception_ptr error();
    void throw_error();
    /* An int: Outcome, once it is done. */
    c10::intrusive_ptr<c10::ivalue::Future> outcome();
    void status(commd_status *ret_status) const
    {
        commd_work_status(handle_, ret_status);
    }
    const c10::Device &device() const
    {
        return device_;
    }

  private:
    void look();
    static void on_done(void *arg, const commd_error *error);
    void raise_interrupted();
    [[noreturn]] void throw_told(int code);

    const std::shared_ptr<Group> group_;
    const c10::Device device_;
    const bool numbered_;
    const std::vector<RecordId> records_;
    const int level_ = callback_level(); /* of who made it */
    commd_work *handle_ = nullptr;       /* owned */
    std::optional<c10::Stream> called_;  /* the stream that it comes behind */
    std::atomic<bool> done_{false};

    std::mutex order_lock_;
    Plan plan_;                          /* its tensors: until a stream waits */
    std::optional<c10::Stream> ordered_; /* the last stream that waits */
    std::optional<c10::Event> unpacked_; /* what copy_back() has enqueued */

    std::mutex lock_; /* of what the library's thread touches */
    std::exception_ptr error_;
    Outcome outcome_ = Outcome::UNKNOWN;
    bool left_ = false, told_ = false;
    c10::intrusive_ptr<c10::ivalue::Future> outcome_future_;
};

class DeviceBatch;

class DeviceWork : public c10d::Work
{
  public:
    DeviceWork(std::shared_ptr<Group> group, std::shared_ptr<SideStreams> side, int rank,
               Plan plan);
    ~DeviceWork() override;

    /* @sync: the current stream waits for it, too. */
    void start(bool sync);

    bool isCompleted() override;
    bool isSuccess() const override;
    std::exception_ptr exception() const override;
    /* The current stream waits, and not the host; but a barrier, and a wait with a limit, are for
     * the host, as they are with NCCL. */
    bool wait(std::chrono::milliseconds timeout = kNoTimeout) override;
    void synchronize() override;
    void blockCurrentStream(); /* virtual since 2.8 */
    std::vector<at::Tensor> result() override;
    c10::intrusive_ptr<c10::ivalue::Future> getFuture() override;
    c10::intrusive_ptr<c10::ivalue::Future> getFutureResult(); /* virtual since 2.6 */
    int sourceRank() const override;
    uint64_t getSequencenumber() const override;
    std::chrono::milliseconds getTimeout() const; /* virtual since 2.14 */
    void abort() override;

  private:
    friend class DeviceBatch;

    std::string who() const;
    /* Submits the section that it is part of, or waits for who does. Throws if that never happened.
     */
    Submission &submission() const;
    void submitted()
    {
        submitted_.store(true, std::memory_order_release);
    }
    bool is_submitted() const
    {
        return submitted_.load(std::memory_order_acquire);
    }
    c10::IValue value() const;

    const std::shared_ptr<Group> group_;
    const std::shared_ptr<SideStreams> side_;
    const char *const name_;
    const bool numbered_, barrier_;
    const int64_t timeout_ms_; /* -1: none */
    const int source_;         /* that a receive names; kNoReceive */
    const size_t nested_;
    const std::vector<at::Tensor> outputs_;
    uint64_t sequence_ = 0;
    std::vector<RecordId> records_;      /* of its parts: until it is submitted */
    Plan plan_;                          /* too */
    std::shared_ptr<DeviceBatch> batch_; /* of a coalesced section; set before anybody has this */
    /* One of the two, then submitted_: who submits may wait for other ranks meanwhile, and other
     * threads have this. */
    std::shared_ptr<Submission> submission_;
    std::exception_ptr never_; /* why it was not */
    std::atomic<bool> submitted_{false};

    std::mutex future_lock_;
    c10::intrusive_ptr<c10::ivalue::Future> future_;
};

/* As Batch, for tensors on a GPU. */
class DeviceBatch
{
  public:
    DeviceBatch(std::shared_ptr<Group> group, std::shared_ptr<SideStreams> side, int rank)
        : group_(std::move(group)), side_(std::move(side)), rank_(rank)
    {
    }
    bool mine() const
    {
        return owner_ == std::this_thread::get_id();
    }
    /* False if it was submitted already. */
    bool add(const std::shared_ptr<DeviceBatch> &self, const c10::intrusive_ptr<DeviceWork> &work);
    /* NULL: it was empty, or somebody else has submitted it, or is about to. */
    c10::intrusive_ptr<DeviceWork> submit();
    /* Until its works are submitted, or never will be. */
    void wait_submitted();
    void abandon();

  private:
    using Works = std::vector<c10::intrusive_ptr<DeviceWork>>;

    Works take();
    c10::intrusive_ptr<DeviceWork> whole_of(Works &works);
    void end(Works &works, const std::shared_ptr<Submission> &submission,
             const std::exception_ptr &never);

    const std::shared_ptr<Group> group_;
    const std::shared_ptr<SideStreams> side_;
    const int rank_;
    const std::thread::id owner_ = std::this_thread::get_id();
    std::mutex lock_;
    std::condition_variable wake_;
    bool closed_ = false, ended_ = false;
    std::thread::id taker_; /* who submits */
    Works works_;
    std::optional<c10::Stream> called_; /* the stream of the first call */
};

} // namespace commd
