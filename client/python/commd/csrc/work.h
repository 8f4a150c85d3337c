/* work.h - a call in flight, as torch sees it. See work.cpp for the model. */
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include <commd/commd.h>
#include <torch/csrc/distributed/c10d/Work.hpp>

#include "callbacks.h"
#include "group.h"
#include "plan.h"

namespace commd
{

class Batch;

/* c10d::WorkResult, which torch 2.5 lacks. */
enum class Outcome : int64_t { SUCCESS = 0, TIMEOUT = 1, COMM_ERROR = 2, UNKNOWN = 100 };

class WorkCommd : public c10d::Work
{
  public:
    WorkCommd(std::shared_ptr<Group> group, int rank, Plan plan);
    ~WorkCommd() override;

    /* Runs all operations on the calling thread; throws what fails. */
    void run();
    /* Starts all operations as one submission; they complete on the library's thread. */
    void start();
    /* Takes the next number of the group. @started: it begins now, and is no part of a batch. */
    void number(bool started);
    /* Done, by other operations than the plan's: @error or success. */
    void settle(std::exception_ptr error);

    bool wait(std::chrono::milliseconds timeout = kNoTimeout) override;
    std::vector<at::Tensor> result() override;
    c10::intrusive_ptr<c10::ivalue::Future> getFuture() override;
    c10::intrusive_ptr<c10::ivalue::Future>
    getFutureResult(); /* an int: Outcome; virtual since 2.6 */
    int sourceRank() const override;
    uint64_t getSequencenumber() const override;
    std::chrono::milliseconds getTimeout() const; /* virtual since 2.14 */
    void abort() override;

  private:
    friend class Batch;
    using Futures =
        std::pair<c10::intrusive_ptr<c10::ivalue::Future>,
                  c10::intrusive_ptr<c10::ivalue::Future>>; /* the outputs, the outcome */

    static void on_done(void *arg, const commd_error *error);
    void finished(const commd_error *error);
    /* True if that is left to a thread for callbacks. */
    bool complete(std::exception_ptr error, Outcome outcome);
    void deliver_later();
    Futures settle_futures();
    void deliver(const Futures &futures);
    [[noreturn]] void wait_failed(std::chrono::milliseconds timeout) const;
    void wait_inside(bool limited, std::chrono::steady_clock::time_point deadline);
    c10::IValue value() const;
    void mark(c10::ivalue::Future &future) const;

    const std::shared_ptr<Group> group_;
    const int level_ = callback_level(); /* of who made it */
    Plan plan_;
    const int64_t timeout_ms_;     /* -1: none */
    uint64_t sequence_ = 0;        /* of this call in its group */
    RecordId record_ = 0;          /* in the flight recorder */
    commd_work *handle_ = nullptr; /* owned; of what was started by itself */
    std::atomic<bool> done_{false};
    std::atomic<bool> called_back_{false}; /* the end is left to a thread for callbacks */
    std::vector<c10::intrusive_ptr<WorkCommd>> parts_; /* of a batch */
    std::shared_ptr<Batch> batch_;                     /* set before anybody has this work */
    /* Under Work's mutex_: */
    bool settled_ = false; /* the outcome is known: new futures are born complete */
    std::exception_ptr error_;
    Outcome outcome_ = Outcome::UNKNOWN;
    c10::intrusive_ptr<c10::ivalue::Future> future_;
    c10::intrusive_ptr<c10::ivalue::Future> future_result_;
};

/* The calls of one thread between startCoalescing() and endCoalescing(). */
class Batch
{
  public:
    Batch(std::shared_ptr<Group> group, int rank) : group_(std::move(group)), rank_(rank)
    {
    }
    bool mine() const
    {
        return owner_ == std::this_thread::get_id();
    }
    bool empty()
    {
        std::lock_guard<std::mutex> guard(lock_);
        return works_.empty();
    }
    /* False if it was submitted already. */
    bool add(const std::shared_ptr<Batch> &self, const c10::intrusive_ptr<WorkCommd> &work);
    /* Once: what was added is started as one submission. Returns the work that stands for it. */
    c10::intrusive_ptr<WorkCommd> submit()
    {
        return submit(take());
    }
    /* For who waits for a part: if nobody has submitted it. */
    void submit_open();
    /* What stands for it, by which a part can be waited for; null: it was not submitted, or is
     * gone. */
    c10::intrusive_ptr<WorkCommd> whole();
    /* Nobody will submit it: what was added fails. */
    void abandon();

  private:
    using Works = std::vector<c10::intrusive_ptr<WorkCommd>>;

    Works take();
    c10::intrusive_ptr<WorkCommd> submit(Works works);

    const std::shared_ptr<Group> group_;
    const int rank_;
    const std::thread::id owner_ = std::this_thread::get_id();
    std::mutex lock_;
    bool closed_ = false;
    Works works_;
    std::optional<c10::weak_intrusive_ptr<WorkCommd>> whole_;
};

/* Frees what completions could not: see on_done(). */
void free_retired_works();
/* The next call of a program's thread drops @last. */
void retire(std::shared_ptr<void> last);

/* Work copies titles and shapes for the profiler; nobody else wants them. */
std::optional<std::vector<at::Tensor>> profiled_inputs(const Plan &plan);
Outcome to_outcome(int code);
/* Of wait(): 0 is none. */
std::chrono::milliseconds wait_limit(std::chrono::milliseconds timeout);

} // namespace commd
