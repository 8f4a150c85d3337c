/* device_work.cpp - a call on tensors of a GPU, as torch sees it: the manners are those of
 * ProcessGroupNCCL.
 *
 * A call comes after what the current stream has been given, and no host waits for it. What the
 * program enqueues afterwards has to be told to wait: a blocking call does that at once, for
 * the current stream, an asynchronous one in wait(). Both return before the operation is done.
 *
 * Memory. The allocator of torch hands freed memory out again in the order of the stream that it
 * was allocated on. So the tensors of a call are kept until a stream waits for it (what is given to
 * that stream later comes after it; if it is another one than that of the call the allocator is
 * told), or, where nobody ever waits, until it is done.
 *
 * What an operation fails with is told by its work, if that is asked after it failed; else by the
 * next call in the group, once; and the group's last words are logged.
 *
 * A future is completed at once, on a stream of the group that waits for the operation: torch lets
 * the streams of those who use its value wait for that stream, and callbacks run on streams that
 * do. So no callback waits for a thread, and none is told of a failure that comes later.
 *
 * on_done() is called on the library's thread, where CUDA must not be called and no tensor be
 * freed: what it holds is freed by the next call of a program's thread.
 *
 * Tensors that do not lie contiguously are packed on the stream of the call, and unpacked on the
 * first stream that waits: without a wait they never are.
 */
#include "device_work.h"
#include "profile.h"
#include "python.h"

#include <c10/core/DeviceGuard.h>
#include <c10/core/StreamGuard.h>
#include <c10/util/Logging.h>
#include <c10/util/StringUtil.h>

namespace commd
{

namespace
{

using std::chrono::milliseconds;
using Clock = std::chrono::steady_clock;

constexpr milliseconds kHostSlice{100}; /* Ctrl-C is noticed this often */

constexpr int kNoReceive = -2;

using FuturePtr = c10::intrusive_ptr<c10::ivalue::Future>;

int source_of(const Plan &plan)
{
    return plan.ops.size() == 1 && plan.ops[0].coll == COMMD_RECV ? plan.ops[0].peer : kNoReceive;
}

} // namespace

Submission::Submission(std::shared_ptr<Group> group, Plan plan, std::vector<RecordId> records)
    : group_(std::move(group)), device_(*plan.device), numbered_(plan.numbered),
      records_(std::move(records)), plan_(std::move(plan))
{
}

Submission::~Submission()
{
    commd_work_free(handle_);
}

/* It is not known when a stream has come to it: in the recorder it is scheduled until then. */
void Submission::note_end(const char *error) const
{
    for (RecordId record : records_)
        record_end(record, error);
}

void Submission::start(const std::shared_ptr<Submission> &self)
{
    Group::Call call(*group_);

    group_->throw_owed();
    called_ = current_stream(device_);
    if (plan_.ops.empty()) {
        outcome_ = Outcome::SUCCESS;
        done_.store(true, std::memory_order_release);
        note_end(nullptr);
        return;
    }
    void *stream = native_handle(*called_);
    for (commd_op &op : plan_.ops) {
        op.memory = COMMD_MEMORY_CUDA;
        op.stream = stream;
    }
    auto *held = new std::shared_ptr<Submission>(self);
    group_->add_pending();
    int r = plan_.ops.size() == 1
                ? commd_start(call.handle(), &plan_.ops[0], on_done, held, &handle_)
                : commd_start_batch(call.handle(), plan_.ops.data(), plan_.ops.size(), on_done,
                                    held, &handle_);
    if (r) {
        auto error = backend_error(*commd_last_error());
        delete held;
        group_->remove_pending();
        if (numbered_)
            group_->note_failure(*commd_last_error());
        raise_pending_any();
        std::rethrow_exception(error);
    }
    raise_interrupted();
}

/* A group's first operation waits for the other ranks. If Ctrl-C has ended that for a part of a
 * section, the part has failed, and the exception is raised here. */
void Submission::raise_interrupted()
{
    try {
        raise_pending_any();
    } catch (...) {
        std::lock_guard<std::mutex> guard(lock_);
        told_ = true;
        throw;
    }
}

void Submission::on_done(void *arg, const commd_error *error)
{
    if (exiting())
        return; /* leaked: the driver may be gone, and half of libtorch */
    auto *held = static_cast<std::shared_ptr<Submission> *>(arg);
    std::shared_ptr<Submission> self = std::move(*held);
    std::shared_ptr<Group> group = self->group_;
    FuturePtr waited_for;

    delete held;
    if (error && self->numbered_)
        group->note_failure(*error);
    self->note_end(error ? error->message : nullptr);
    {
        std::lock_guard<std::mutex> guard(self->lock_);
        self->outcome_ = error ? to_outcome(error->code) : Outcome::SUCCESS;
        if (error)
            self->error_ = backend_error(*error);
        if (error && self->left_ && !std::exchange(self->told_, true))
            group->owe(self->error_);
        waited_for = std::move(self->outcome_future_);
        self->done_.store(true, std::memory_order_release);
    }
    if (waited_for) {
        group->add_pending();
        call_back(group.get(), self->level_,
                  [waited_for, group, outcome = static_cast<int64_t>(self->outcome_)]() {
                      waited_for->markCompleted(c10::IValue(outcome));
                      group->remove_pending();
                  });
    }
    retire(std::move(self));
    group->remove_pending(); /* last: close() may free what is needed above */
}

/* What the last call into the library said about it. */
void Submission::throw_told(int code)
{
    {
        std::lock_guard<std::mutex> guard(lock_);
        told_ = true;
    }
    throw_last_error(code);
}

void Submission::order(const c10::Stream &stream)
{
    std::lock_guard<std::mutex> guard(order_lock_);

    if (ordered_ && *ordered_ == stream)
        return;
    if (handle_) {
        std::optional<Group::Call> call; /* what is done outlives the group */
        if (!done())
            call.emplace(*group_);
        int r = commd_work_wait_stream(handle_, native_handle(stream));
        if (r)
            throw_told(r);
    }
    if (unpacked_) {
        unpacked_->block(stream);
    } else if (plan_.unpacks()) {
        c10::StreamGuard on(stream);
        plan_.copy_back();
        unpacked_.emplace(stream.device_type());
        unpacked_->record(stream);
    }
    ordered_ = stream;
    if (stream != *called_)
        plan_.record(stream);
    plan_.release();
}

void Submission::wait_on_host(const std::string &who, milliseconds timeout)
{
    const bool limited = timeout > milliseconds(0);
    const auto deadline = Clock::now() + (limited ? timeout : milliseconds(0));

    while (handle_ && !commd_work_test(handle_, nullptr)) {
        int64_t ms = -1; /* the library asks for Ctrl-C, and knows for how long it is waited for */
        if (limited) {
            ms = std::chrono::duration_cast<milliseconds>(deadline - Clock::now()).count();
            if (ms <= 0) {
                std::rethrow_exception(
                    backend_error(c10::str("commd: ", who, ": wait() timeout after ",
                                           limit_text(timeout), "; it is still pending")));
            }
        }
        if (!group_->ours()) {
            std::rethrow_exception(backend_error(
                c10::str("commd: ", who, " was started by another process, before fork()")));
        }
        if (commd_work_wait(handle_, ms) == COMMD_E_INTERRUPTED)
            raise_pending_any();
        if (check_signals(nullptr))
            raise_pending();
    }
    int r = handle_ ? commd_work_wait(handle_, -1) : 0;
    if (r)
        throw_told(r);
}

void Submission::leave(const std::shared_ptr<Submission> &self)
{
    {
        std::lock_guard<std::mutex> guard(self->lock_);
        self->left_ = true;
        if (self->error_ && !std::exchange(self->told_, true))
            self->group_->owe(self->error_);
        if (self->error_ || !self->handle_)
            return;
    }
    self->group_->leave_behind(self);
}

/* With lock_ held: what the library knows already. */
void Submission::look()
{
    int code = 0;

    if (!error_ && handle_ && commd_work_test(handle_, &code) && code) {
        commd_work_wait(handle_, 0); /* is done: sets this thread's error */
        error_ = backend_error(*commd_last_error());
        outcome_ = to_outcome(code);
    }
}

void Submission::settle()
{
    std::lock_guard<std::mutex> guard(lock_);

    look();
    if (error_ && !std::exchange(told_, true))
        group_->owe(error_);
}

std::exception_ptr Submission::error()
{
    std::lock_guard<std::mutex> guard(lock_);

    look();
    told_ = told_ || error_;
    return error_;
}

void Submission::throw_error()
{
    if (auto error = this->error())
        std::rethrow_exception(error);
}

FuturePtr Submission::outcome()
{
    auto future = c10::make_intrusive<c10::ivalue::Future>(c10::IntType::get());
    std::unique_lock<std::mutex> lock(lock_);

    if (!done_.load(std::memory_order_acquire)) {
        if (!outcome_future_)
            outcome_future_ = future;
        return outcome_future_;
    }
    lock.unlock();
    future->markCompleted(c10::IValue(static_cast<int64_t>(outcome_)));
    return future;
}

DeviceWork::DeviceWork(std::shared_ptr<Group> group, std::shared_ptr<SideStreams> side, int rank,
                       Plan plan)
    : Work(rank, plan.type, profiled() ? plan.title : nullptr, profiled_inputs(plan)),
      group_(std::move(group)), side_(std::move(side)), name_(plan.name), numbered_(plan.numbered),
      barrier_(plan.type == c10d::OpType::BARRIER),
      timeout_ms_(group_->recorded()->timeout_of(plan.timeout_ms)), source_(source_of(plan)),
      nested_(plan.nested), outputs_(plan.outputs), plan_(std::move(plan))
{
}

DeviceWork::~DeviceWork()
{
    if (submission_)
        Submission::leave(submission_);
}

void DeviceWork::start(bool sync)
{
    const c10::Device device = *plan_.device;
    c10::DeviceGuard guard(device);

    if (numbered_)
        sequence_ = group_->next_sequence();
    if (numbered_)
        records_.push_back(record_begin(group_->recorded(), plan_, sequence_, false));
    submission_ = std::make_shared<Submission>(group_, std::move(plan_), std::move(records_));
    submitted(); /* nobody else has this yet */
    try {
        submission_->start(submission_);
    } catch (const std::exception &e) {
        submission_->note_end(e.what());
        throw;
    }
    finish();              /* for the profiler: that it was issued */
    if (sync && !barrier_) /* there the host waits: a stream that others share need not */
        submission_->order(current_stream(device));
}

std::string DeviceWork::who() const
{
    std::string number = numbered_ ? c10::str(" number ", sequence_) : "";

    return c10::str(name_, number, " of group ", group_->name());
}

Submission &DeviceWork::submission() const
{
    if (!is_submitted()) {
        batch_->submit();
        batch_->wait_submitted();
    }
    if (never_)
        std::rethrow_exception(never_);
    return *submission_;
}

bool DeviceWork::isCompleted()
{
    return is_submitted() && (never_ || submission_->done());
}

bool DeviceWork::isSuccess() const
{
    return is_submitted() && !never_ && submission_->done() && !submission_->error();
}

std::exception_ptr DeviceWork::exception() const
{
    if (!is_submitted())
        return nullptr;
    return never_ ? never_ : submission_->error();
}

bool DeviceWork::wait(milliseconds timeout)
{
    Submission &s = submission();
    c10::DeviceGuard guard(s.device());

    timeout = wait_limit(timeout);
    s.throw_error();
    if (barrier_ || timeout > milliseconds(0))
        s.wait_on_host(who(), timeout);
    s.order(current_stream(s.device()));
    return true;
}

void DeviceWork::synchronize()
{
    wait(kNoTimeout);
}

void DeviceWork::blockCurrentStream()
{
    Submission &s = submission();
    c10::DeviceGuard guard(s.device());

    s.order(current_stream(s.device()));
}

std::vector<at::Tensor> DeviceWork::result()
{
    return outputs_;
}

c10::IValue DeviceWork::value() const
{
    if (!nested_)
        return c10::IValue(outputs_);
    std::vector<std::vector<at::Tensor>> lists;
    for (size_t i = 0; i < outputs_.size(); i += nested_)
        lists.emplace_back(outputs_.begin() + i, outputs_.begin() + i + nested_);
    return c10::IValue(lists);
}

FuturePtr DeviceWork::getFuture()
{
    Submission &s = submission();
    std::lock_guard<std::mutex> lock(future_lock_);

    if (future_)
        return future_;
    c10::TypePtr type = c10::ListType::create(c10::TensorType::get());
    if (nested_)
        type = c10::ListType::create(type);
    future_ = c10::make_intrusive<c10::ivalue::Future>(type, std::vector<c10::Device>{s.device()});
    c10::StreamGuard on(side_->of(s.device()));
    try {
        s.throw_error();
        s.order(on.current_stream());
        future_->markCompleted(value());
    } catch (...) {
        future_->setError(std::current_exception());
    }
    return future_;
}

FuturePtr DeviceWork::getFutureResult()
{
    return submission().outcome();
}

int DeviceWork::sourceRank() const
{
    commd_status status;

    TORCH_CHECK(source_ != kNoReceive, "commd: ", name_, " has no source rank; receives have");
    if (source_ != COMMD_ANY_SOURCE)
        return source_;
    Submission &s = submission();
    s.wait_on_host(who(), kNoTimeout); /* it is not known before */
    s.status(&status);
    return status.source;
}

uint64_t DeviceWork::getSequencenumber() const
{
    return sequence_;
}

milliseconds DeviceWork::getTimeout() const
{
    return std::max(milliseconds(timeout_ms_), kNoTimeout);
}

void DeviceWork::abort()
{
    group_->abort("Work.abort()");
}

bool DeviceBatch::add(const std::shared_ptr<DeviceBatch> &self,
                      const c10::intrusive_ptr<DeviceWork> &work)
{
    std::lock_guard<std::mutex> guard(lock_);

    if (closed_)
        return false;
    if (work->numbered_)
        work->sequence_ = group_->next_sequence();
    TORCH_CHECK(works_.empty() || *works_[0]->plan_.device == *work->plan_.device,
                "commd: ", work->name_, ": a coalesced section takes tensors of one device, got ",
                *works_[0]->plan_.device, " and ", *work->plan_.device);
    work->batch_ = self;
    if (works_.empty())
        called_ = current_stream(*work->plan_.device);
    works_.push_back(work);
    return true;
}

DeviceBatch::Works DeviceBatch::take()
{
    std::lock_guard<std::mutex> guard(lock_);

    closed_ = true;
    if (!works_.empty())
        taker_ = std::this_thread::get_id();
    return std::move(works_);
}

void DeviceBatch::end(Works &works, const std::shared_ptr<Submission> &submission,
                      const std::exception_ptr &never)
{
    for (auto &work : works) {
        work->submission_ = submission;
        work->never_ = never;
        work->submitted();
        if (submission)
            work->finish();
    }
    std::lock_guard<std::mutex> guard(lock_);
    ended_ = true;
    wake_.notify_all();
}

void DeviceBatch::wait_submitted()
{
    std::unique_lock<std::mutex> lock(lock_);

    while (!wake_.wait_for(lock, kHostSlice, [this] { return ended_; })) {
        const bool mine = taker_ == std::this_thread::get_id(); /* in a handler of a signal */
        lock.unlock();
        if (mine)
            std::rethrow_exception(
                backend_error("commd: the coalesced section of this call is being started"));
        if (check_signals(nullptr))
            raise_pending();
        lock.lock();
    }
}

/* One work for all of them; what they were to do is its. */
c10::intrusive_ptr<DeviceWork> DeviceBatch::whole_of(Works &works)
{
    Plan plan("coalesced", "commd:coalesced", c10d::OpType::COALESCED, c10d::kUnsetTimeout);
    std::vector<RecordId> records;

    plan.numbered = false; /* each part has its number */
    plan.device = works[0]->plan_.device;
    for (auto &work : works) {
        if (work->numbered_)
            records.push_back(
                record_begin(group_->recorded(), work->plan_, work->sequence_, false));
        plan.absorb(std::move(work->plan_));
    }
    auto whole = c10::make_intrusive<DeviceWork>(group_, side_, rank_, std::move(plan));
    whole->records_ = std::move(records);
    return whole;
}

c10::intrusive_ptr<DeviceWork> DeviceBatch::submit()
{
    Works works = take();

    if (works.empty())
        return nullptr;
    try {
        /* behind what fills their tensors, also if a thread with another stream waits for a part */
        c10::StreamGuard on(*called_);
        auto whole = whole_of(works);
        whole->start(false);
        end(works, whole->submission_, nullptr);
        return whole;
    } catch (...) {
        end(works, nullptr, std::current_exception());
        throw;
    }
}

void DeviceBatch::abandon()
{
    Works works = take();

    if (!works.empty())
        end(works, nullptr,
            backend_error("commd: the coalesced section of this call was never ended"));
}

} // namespace commd
