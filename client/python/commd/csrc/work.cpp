/* work.cpp - a call in flight, as torch sees it.
 *
 * A blocking call runs on the caller's thread, without the GIL and without a hand-over, and
 * returns a Work that is already done. An asynchronous one is started in the library, which
 * calls on_done() on its own thread, or on one that waits for a Work (or before start() returns).
 *
 * There it must never need the GIL: with the main thread busy in Python it would wait for
 * 5 ms per completion, and once the interpreter ends for ever. So completion is plain C++ (a
 * future, a condition variable), and no tensor is released there: the last reference to a tensor
 * whose Python object is gone takes the GIL. If the program has dropped the Work already, its
 * tensors are put on a list that the next call from a program's thread empties. Callbacks that a
 * program hangs on the future (`then`) take the GIL and may wait: a Work whose future was asked for
 * is completed by a thread for that (callbacks.cpp).
 *
 * Several operations may make up one Work (coalesced calls): they are one submission, which is
 * done when all are; its error is the first one's.
 *
 * A batch collects the Works of the calls between startCoalescing() and endCoalescing() and
 * submits them as one Work, whose parts they are. c10d's Python waits for a blocking call also
 * there, before the batch is ended: waiting for a part submits what has been collected so far.
 *
 * The future is made when it is asked for: most Works are only waited for.
 */
#include "work.h"
#include "callbacks.h"
#include "profile.h"
#include "python.h"

#include <sched.h>

#include <ATen/core/ivalue.h>
#include <c10/util/Logging.h>
#include <c10/util/StringUtil.h>

namespace commd
{

namespace
{

using std::chrono::milliseconds;
using Clock = std::chrono::steady_clock;

constexpr int kYields = 64;         /* before sleeping: a small operation takes microseconds */
constexpr milliseconds kSlice{100}; /* Ctrl-C is noticed this often */

struct Retired {
    struct Item {
        Plan plan;
        c10::intrusive_ptr<c10::ivalue::Future> future;
    };
    std::mutex lock;
    std::vector<Item> items;
    std::vector<std::shared_ptr<void>> others;
    std::atomic<bool> any{false};
};

/* True while the library completes something on this thread. */
thread_local bool completing = false;

/* Never destroyed: the library's thread may outlive main(). */
Retired &retired()
{
    static auto *list = new Retired;
    return *list;
}

void retire(Plan plan, c10::intrusive_ptr<c10::ivalue::Future> future)
{
    Retired &list = retired();
    std::lock_guard<std::mutex> guard(list.lock);

    list.items.push_back({std::move(plan), std::move(future)});
    list.any.store(true, std::memory_order_release);
}

bool is_receive(const Plan &plan)
{
    return plan.ops.size() == 1 && plan.ops[0].coll == COMMD_RECV;
}

} // namespace

void retire(std::shared_ptr<void> last)
{
    Retired &list = retired();
    std::lock_guard<std::mutex> guard(list.lock);

    list.others.push_back(std::move(last));
    list.any.store(true, std::memory_order_release);
}

/* Work copies titles and shapes for the profiler; nobody else wants them. */
std::optional<std::vector<at::Tensor>> profiled_inputs(const Plan &plan)
{
    if (plan.inputs.empty() || !profiled())
        return std::nullopt;
    return plan.inputs;
}

std::string text_of(std::exception_ptr error)
{
    try {
        std::rethrow_exception(error);
    } catch (const c10::Error &e) {
        return e.msg();
    } catch (const std::exception &e) {
        return e.what();
    }
}

milliseconds wait_limit(milliseconds timeout)
{
    return timeout == c10d::kUnsetTimeout ? kNoTimeout : checked_timeout("wait", timeout);
}

Outcome to_outcome(int code)
{
    return code == COMMD_E_TIMEOUT ? Outcome::TIMEOUT : Outcome::COMM_ERROR;
}

void free_retired_works()
{
    Retired &list = retired();

    if (!list.any.load(std::memory_order_acquire))
        return;
    std::vector<Retired::Item> items; /* freed after the lock is released */
    std::vector<std::shared_ptr<void>> others;
    std::lock_guard<std::mutex> guard(list.lock);
    items.swap(list.items);
    others.swap(list.others);
    list.any.store(false, std::memory_order_relaxed);
}

WorkCommd::WorkCommd(std::shared_ptr<Group> group, int rank, Plan plan)
    : Work(rank, plan.type, profiled() ? plan.title : nullptr, profiled_inputs(plan)),
      group_(std::move(group)), plan_(std::move(plan)),
      timeout_ms_(group_->recorded()->timeout_of(plan_.timeout_ms))
{
}

WorkCommd::~WorkCommd()
{
    commd_work_free(handle_);
    if (completing)
        retire(std::move(plan_), std::move(future_));
}

void WorkCommd::number(bool started)
{
    if (!plan_.numbered)
        return;
    sequence_ = group_->next_sequence();
    record_ = record_begin(group_->recorded(), plan_, sequence_, started);
}

void WorkCommd::run()
{
    Group::Call call(*group_);

    number(true);
    for (const commd_op &op : plan_.ops) {
        int r = commd_run(call.handle(), &op);
        if (C10_UNLIKELY(r)) {
            if (plan_.numbered)
                group_->note_failure(*commd_last_error());
            record_end(record_, commd_last_error()->message);
            throw_last_error(r);
        }
    }
    plan_.copy_back();
    complete(nullptr, Outcome::SUCCESS);
}

void WorkCommd::start()
{
    Group::Call call(*group_);

    number(true);
    if (plan_.ops.empty()) {
        complete(nullptr, Outcome::SUCCESS);
        return;
    }
    auto self = c10::intrusive_ptr<WorkCommd>::reclaim_copy(this);
    commd_work *handle = nullptr;

    group_->add_pending();
    int r = plan_.ops.size() == 1
                ? commd_start(call.handle(), &plan_.ops[0], on_done, self.get(), &handle)
                : commd_start_batch(call.handle(), plan_.ops.data(), plan_.ops.size(), on_done,
                                    self.get(), &handle);
    if (r) {
        auto error = backend_error(*commd_last_error());
        group_->remove_pending();
        complete(error, to_outcome(r));
        std::rethrow_exception(error);
    }
    self.release(); /* on_done() takes it back: it may have done so already */
    handle_ = handle;
}

void WorkCommd::on_done(void *arg, const commd_error *error)
{
    if (gone())
        return; /* leaked: half of libtorch may be destroyed already */
    auto work = c10::intrusive_ptr<WorkCommd>::reclaim(static_cast<WorkCommd *>(arg));
    std::shared_ptr<Group> group = work->group_;
    bool nested = completing; /* below a start() that a callback of ours made */
    completing = true;
    try {
        work->finished(error);
    } catch (const std::exception &e) {
        LOG(ERROR) << "commd: a callback on the future of " << work->plan_.name
                   << " threw: " << e.what();
    }
    work.reset();
    completing = nested;
    group->remove_pending(); /* last: close() may free what is needed above */
}

/* As on_done(), for a work that has a future: see callbacks.cpp. */
void WorkCommd::deliver_later()
{
    auto self = c10::intrusive_ptr<WorkCommd>::reclaim_copy(this);
    auto group = group_;

    called_back_.store(true, std::memory_order_release);
    group->add_pending();
    call_back(group.get(), level_, [self, group]() mutable {
        bool nested = completing;
        completing = true;
        try {
            Futures futures;
            {
                std::lock_guard<std::mutex> guard(self->mutex_);
                futures = self->settle_futures();
            }
            self->deliver(futures);
        } catch (const std::exception &e) {
            LOG(ERROR) << "commd: a callback on the future of " << self->plan_.name
                       << " threw: " << e.what();
        }
        self.reset();
        completing = nested;
        group->remove_pending();
    });
}

void WorkCommd::finished(const commd_error *error)
{
    if (!error) {
        settle(nullptr);
        return;
    }
    if (plan_.numbered || !parts_.empty())
        group_->note_failure(*error);
    complete(backend_error(*error), to_outcome(error->code));
}

void WorkCommd::settle(std::exception_ptr error)
{
    try {
        if (!error) {
            plan_.copy_back();
            for (auto &part : parts_)
                part->plan_.copy_back();
        }
    } catch (...) {
        error = std::current_exception();
    }
    complete(error, error ? Outcome::COMM_ERROR : Outcome::SUCCESS);
}

bool WorkCommd::complete(std::exception_ptr error, Outcome outcome)
{
    bool later = false;
    Futures futures;

    for (auto &part : parts_)
        later |= part->complete(error, outcome);
    record_end(record_, error ? text_of(error).c_str() : nullptr);
    {
        std::lock_guard<std::mutex> guard(mutex_);
        error_ = error;
        outcome_ = outcome;
        later |= completing && (future_ || future_result_);
        if (!later)
            futures = settle_futures();
    }
    if (later)
        deliver_later();
    else
        deliver(futures);
    return later;
}

/* With mutex_ held: those that are there are marked by the caller; one that is asked for from now
 * on is marked by who asks, so none by both. */
WorkCommd::Futures WorkCommd::settle_futures()
{
    settled_ = true;
    return {future_, future_result_};
}

void WorkCommd::deliver(const Futures &futures)
{
    const auto &[future, future_result] = futures;

    /* Before finish(): after wait() the future of a Work is done. */
    if (future)
        mark(*future);
    if (future_result)
        future_result->markCompleted(c10::IValue(static_cast<int64_t>(outcome_)));
    finish(error_);
    done_.store(true, std::memory_order_release);
}

void WorkCommd::mark(c10::ivalue::Future &future) const
{
    if (error_)
        future.setError(error_);
    else
        future.markCompleted(value());
}

c10::IValue WorkCommd::value() const
{
    if (!plan_.nested)
        return c10::IValue(plan_.outputs);
    std::vector<std::vector<at::Tensor>> lists;
    for (size_t i = 0; i < plan_.outputs.size(); i += plan_.nested)
        lists.emplace_back(plan_.outputs.begin() + i, plan_.outputs.begin() + i + plan_.nested);
    return c10::IValue(lists);
}

c10::intrusive_ptr<c10::ivalue::Future> WorkCommd::getFuture()
{
    std::unique_lock<std::mutex> lock(mutex_);

    if (future_)
        return future_;
    c10::TypePtr type = c10::ListType::create(c10::TensorType::get());
    if (plan_.nested)
        type = c10::ListType::create(type);
    future_ = c10::make_intrusive<c10::ivalue::Future>(type);
    auto future = future_;
    bool settled = settled_;
    lock.unlock();
    if (settled)
        mark(*future);
    return future;
}

c10::intrusive_ptr<c10::ivalue::Future> WorkCommd::getFutureResult()
{
    std::unique_lock<std::mutex> lock(mutex_);

    if (future_result_)
        return future_result_;
    future_result_ = c10::make_intrusive<c10::ivalue::Future>(c10::IntType::get());
    auto future = future_result_;
    bool settled = settled_;
    lock.unlock();
    if (settled)
        future->markCompleted(c10::IValue(static_cast<int64_t>(outcome_)));
    return future;
}

void WorkCommd::wait_failed(milliseconds timeout) const
{
    std::string which;

    if (plan_.numbered)
        which = c10::str(" number ", sequence_);
    std::rethrow_exception(backend_error(c10::str("commd: ", plan_.name, which, " of group ",
                                                  group_->name(), ": wait() timeout after ",
                                                  limit_text(timeout), "; it is still pending")));
}

/* Waits in the library, where this thread stands in for the one that would else be handed the
 * operation and hand back its end. In one go: the library asks for Ctrl-C itself, and knows for how
 * long it is waited for. What is left to wait for, or to say, is wait()'s. */
void WorkCommd::wait_inside(bool limited, Clock::time_point deadline)
{
    struct Hold { /* the connection stays until we are out of it */
        std::shared_ptr<Group> group;
        explicit Hold(std::shared_ptr<Group> held) : group(std::move(held))
        {
            group->add_pending();
        }
        ~Hold()
        {
            group->remove_pending();
        }
    } hold(group_);

    int64_t ms = -1;
    if (limited) {
        auto left = std::chrono::duration_cast<milliseconds>(deadline - Clock::now());
        ms = std::max<int64_t>(left.count() + 1, 1);
    }
    if (commd_work_wait(handle_, ms) == COMMD_E_INTERRUPTED)
        raise_pending_any();
}

bool WorkCommd::wait(milliseconds timeout)
{
    timeout = wait_limit(timeout);
    if (done_.load(std::memory_order_acquire) && !error_)
        return true; /* as after every blocking call */
    const bool limited = timeout > milliseconds(0);
    const auto deadline = Clock::now() + (limited ? timeout : milliseconds(0));

    if (batch_)
        batch_->submit_open();
    std::optional<WaitRange> range;
    if (C10_UNLIKELY(profiled()))
        range.emplace(plan_.name);
    if (group_->ours()) {
        if (handle_)
            wait_inside(limited, deadline);
        else if (auto whole = batch_ ? batch_->whole() : nullptr) /* its end is ours */
            whole->wait_inside(limited, deadline);
    }
    for (int i = 0; i < kYields && !done_.load(std::memory_order_acquire); i++)
        sched_yield();
    std::unique_lock<std::mutex> lock(mutex_);
    while (!completed_) {
        auto slice = Clock::duration(kSlice);
        if (limited)
            slice = std::min(slice, deadline - Clock::now());
        if (slice.count() > 0)
            cv_.wait_for(lock, slice);
        if (completed_)
            break;
        lock.unlock();
        if (limited && Clock::now() >= deadline)
            wait_failed(timeout);
        if (!group_->ours()) {
            std::rethrow_exception(backend_error(
                c10::str("commd: ", plan_.name, " was started by another process, before fork()")));
        }
        if (exiting() && called_back_.load(std::memory_order_acquire)) {
            std::rethrow_exception(
                backend_error(c10::str("commd: ", plan_.name, " of group ", group_->name(),
                                       " has ended, and so has the program: callbacks on its "
                                       "future do not run any more")));
        }
        if (check_signals(nullptr))
            raise_pending();
        lock.lock();
    }
    lock.unlock();
    return Work::wait(kNoTimeout); /* done: rethrows the error, keeps c10d's books */
}

std::vector<at::Tensor> WorkCommd::result()
{
    TORCH_CHECK(isCompleted(), "commd: result() of ", plan_.name,
                " before it is done; call wait() first");
    return plan_.outputs;
}

int WorkCommd::sourceRank() const
{
    commd_status status;
    bool done;

    TORCH_CHECK(is_receive(plan_), "commd: ", plan_.name, " has no source rank; receives have");
    {
        std::lock_guard<std::mutex> guard(mutex_);
        done = completed_; /* not done_, which follows it */
    }
    TORCH_CHECK(done,
                "commd: the source of a receive is asked for before it is done; call wait() first");
    if (!handle_)
        return plan_.ops[0].peer; /* in a batch, whose receives name their source */
    commd_work_status(handle_, &status);
    return status.source;
}

uint64_t WorkCommd::getSequencenumber() const
{
    return sequence_;
}

milliseconds WorkCommd::getTimeout() const
{
    return std::max(milliseconds(timeout_ms_), kNoTimeout);
}

void WorkCommd::abort()
{
    group_->abort("Work.abort()");
}

bool Batch::add(const std::shared_ptr<Batch> &self, const c10::intrusive_ptr<WorkCommd> &work)
{
    std::lock_guard<std::mutex> guard(lock_);

    if (closed_)
        return false;
    work->number(false);
    work->batch_ = self;
    works_.push_back(work);
    return true;
}

Batch::Works Batch::take()
{
    std::lock_guard<std::mutex> guard(lock_);

    closed_ = true;
    return std::move(works_);
}

void Batch::submit_open()
{
    Works works = take();

    if (!works.empty())
        submit(std::move(works));
}

c10::intrusive_ptr<WorkCommd> Batch::submit(Works works)
{
    Plan plan("coalesced", "commd:coalesced", c10d::OpType::COALESCED, c10d::kUnsetTimeout);

    plan.numbered = false; /* each part has its number */
    for (auto &work : works) {
        plan.ops.append(work->plan_.ops.begin(), work->plan_.ops.end());
        plan.outputs.insert(plan.outputs.end(), work->plan_.outputs.begin(),
                            work->plan_.outputs.end());
    }
    auto whole = c10::make_intrusive<WorkCommd>(group_, rank_, std::move(plan));
    whole->parts_ = std::move(works);
    for (auto &part : whole->parts_)
        record_started(part->record_);
    try {
        whole->start();
    } catch (...) {
        if (!whole->done_.load(std::memory_order_acquire))
            whole->complete(std::current_exception(), Outcome::COMM_ERROR);
        throw;
    }
    if (whole->handle_) {
        std::lock_guard<std::mutex> guard(lock_);
        whole_.emplace(whole);
    }
    return whole;
}

c10::intrusive_ptr<WorkCommd> Batch::whole()
{
    std::lock_guard<std::mutex> guard(lock_);

    return whole_ ? whole_->lock() : c10::intrusive_ptr<WorkCommd>();
}

void Batch::abandon()
{
    for (auto &work : take()) {
        work->complete(backend_error("commd: the coalesced section of this call was never ended"),
                       Outcome::COMM_ERROR);
    }
}

} // namespace commd
