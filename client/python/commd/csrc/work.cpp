/* work.cpp - a collective in flight, as torch sees it.
 *
 * A blocking call runs on the caller's thread, without the GIL and without a hand-over, and
 * returns a Work that is already done. An asynchronous one is started in the library, which
 * calls on_done() on its own thread.
 *
 * That thread must never need the GIL: with the main thread busy in Python it would wait for
 * 5 ms per completion, and at interpreter exit for ever. So completion is plain C++ (a future,
 * a condition variable), and no tensor is released there: the last reference to a tensor whose
 * Python object is gone takes the GIL. If the program has dropped the Work already, it is put
 * on a list that the next call from a program's thread empties. Callbacks that a program hangs
 * on the future (`then`) do run there and do take the GIL; that is c10d's contract.
 *
 * Several operations may make up one Work (coalesced calls, lists). It is done when all are; its
 * error is the first one's.
 *
 * The future is made when it is asked for: most Works are only waited for.
 */
#include "work.h"
#include "python.h"

#include <cstring>

#include <sched.h>

#include <ATen/core/ivalue.h>
#include <c10/util/Logging.h>
#include <c10/util/StringUtil.h>

namespace commd {

namespace {

using std::chrono::milliseconds;
using Clock = std::chrono::steady_clock;

constexpr int kYields = 64;            /* before sleeping: a small operation takes microseconds */
constexpr milliseconds kSlice{100};    /* Ctrl-C is noticed this often */

struct Retired {
    std::mutex lock;
    std::vector<c10::intrusive_ptr<WorkCommd>> works;
    std::atomic<bool> any{false};
};

/* Never destroyed: the library's thread may outlive main(). */
Retired &retired()
{
    static auto *list = new Retired;
    return *list;
}

void retire(c10::intrusive_ptr<WorkCommd> work)
{
    Retired &list = retired();
    std::lock_guard<std::mutex> guard(list.lock);

    list.works.push_back(std::move(work));
    list.any.store(true, std::memory_order_release);
}

} // namespace

void free_retired_works()
{
    Retired &list = retired();

    if (!list.any.load(std::memory_order_acquire))
        return;
    std::vector<c10::intrusive_ptr<WorkCommd>> works;
    std::lock_guard<std::mutex> guard(list.lock);
    works.swap(list.works);
    list.any.store(false, std::memory_order_relaxed);
}

WorkCommd::WorkCommd(std::shared_ptr<Group> group, int rank, Plan plan)
    : Work(rank, plan.type, plan.title,
           plan.inputs.empty() ? std::optional<std::vector<at::Tensor>>() : plan.inputs),
      group_(std::move(group)), plan_(std::move(plan))
{
}

void WorkCommd::run()
{
    Group::Call call(*group_);

    sequence_ = group_->next_sequence();
    for (const commd_op &op : plan_.ops) {
        int r = commd_run(call.handle(), &op);
        if (r) {
            group_->note_failure(r);
            throw_last_error(r);
        }
    }
    copy_out();
    complete();
}

void WorkCommd::start()
{
    Group::Call call(*group_);
    size_t started = 0;

    sequence_ = group_->next_sequence();
    if (plan_.ops.empty()) {
        complete();
        return;
    }
    parts_left_.store(plan_.ops.size(), std::memory_order_relaxed);
    for (const commd_op &op : plan_.ops) {
        commd_work *handle = nullptr;
        auto self = c10::intrusive_ptr<WorkCommd>::reclaim_copy(this);

        group_->add_pending();
        int r = commd_start(call.handle(), &op, on_done, self.release(), &handle);
        if (r) {
            commd_error error = *commd_last_error();
            c10::intrusive_ptr<WorkCommd>::reclaim(this); /* what on_done would have taken */
            group_->remove_pending();
            if (started == 0)
                std::rethrow_exception(backend_error(error));
            for (size_t i = started; i < plan_.ops.size(); i++)
                part_done(&error);
            return;
        }
        started++;
        commd_work_free(handle); /* drops the handle only: on_done() tells us all we need */
    }
}

void WorkCommd::on_done(void *arg, const commd_error *error)
{
    if (exiting())
        return; /* leaked: half of libtorch may be destroyed already */
    auto work = c10::intrusive_ptr<WorkCommd>::reclaim(static_cast<WorkCommd *>(arg));
    std::shared_ptr<Group> group = work->group_;
    try {
        work->part_done(error);
    } catch (const std::exception &e) {
        LOG(ERROR) << "commd: a callback on the future of " << work->plan_.name
                   << " threw: " << e.what();
    }
    if (work.use_count() == 1)
        retire(std::move(work));
    else
        work.reset();
    group->remove_pending(); /* last: close() may free what is needed above */
}

void WorkCommd::part_done(const commd_error *error)
{
    if (error) {
        group_->note_failure(error->code);
        std::lock_guard<std::mutex> guard(mutex_);
        if (!error_)
            error_ = backend_error(*error);
    }
    if (parts_left_.fetch_sub(1, std::memory_order_acq_rel) != 1)
        return;
    if (!error_)
        copy_out();
    complete();
}

void WorkCommd::copy_out()
{
    for (const Plan::Copy &copy : plan_.copies) {
        if (copy.bytes)
            std::memcpy(copy.to, copy.from, copy.bytes);
    }
    plan_.copies.clear();
    plan_.staging.clear(); /* ours alone: no Python object hangs on these */
}

void WorkCommd::complete()
{
    c10::intrusive_ptr<c10::ivalue::Future> future;
    {
        std::lock_guard<std::mutex> guard(mutex_);
        settled_ = true;
        future = future_;
    }
    /* Before finish(): after wait() the future of a Work is done. */
    if (future)
        settle(*future);
    finish(error_);
    done_.store(true, std::memory_order_release);
}

void WorkCommd::settle(c10::ivalue::Future &future)
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
        settle(*future);
    return future;
}

bool WorkCommd::wait(milliseconds timeout)
{
    const bool limited = timeout > milliseconds(0);
    const auto deadline = Clock::now() + timeout;

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
        if (limited && Clock::now() >= deadline) {
            std::rethrow_exception(backend_error(
                c10::str("commd: ", plan_.name, " number ", sequence_, " of group ",
                         group_->name(), ": wait() timeout after ", timeout.count(),
                         " ms; it is still pending")));
        }
        if (!group_->ours()) {
            std::rethrow_exception(backend_error(c10::str(
                "commd: ", plan_.name, " was started by another process, before fork()")));
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

uint64_t WorkCommd::getSequencenumber() const
{
    return sequence_;
}

void WorkCommd::abort()
{
    group_->abort("Work.abort()");
}

} // namespace commd
