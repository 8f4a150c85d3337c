/* group.cpp - one commd group. The connection that all groups of a process share: connection.cpp.
 *
 * Rendezvous: rank 0 draws a random token and puts it into torch's store, the others fetch it:
 * one key per group, whatever its size. The token is in the commd group's name, so two jobs
 * with equal group names never meet, nor does a restarted job meet its predecessor: it needs no
 * name of the job, which "/" leaves out. The key
 * holds the member ranks, because torch gives disjoint groups one name and one store prefix
 * ({0,2} and {1,3} made by the same line of code). A program may make the same group again in
 * the same store: rank 0 removes the key once all have joined, and nobody takes a token twice.
 *
 * A group whose members are in a group of commd already has a parent: its token follows from the
 * parent's name, so it needs no store, and the join ends when commd knows that a member has died.
 *
 * Closing: commd_group_leave() frees the group, so it must not run while a thread is inside a
 * call or an asynchronous operation is pending. close() stops new calls, waits briefly, then
 * aborts the group, which ends them; if even that does not, the group is leaked.
 *
 * The end of the process has two steps. When the last function of the program has run (those of
 * atexit, too), idle groups are left; nothing is waited for, and the connection is left to the
 * kernel: the daemon sees the socket close. Operations that are pending still complete, for who
 * waits for them in what is freed last. When libraries are about to be destroyed, they do not.
 */
#include "group.h"
#include "callbacks.h"
#include "python.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <optional>
#include <thread>
#include <utility>

#include <sys/random.h>
#include <unistd.h>

#include <c10/util/Exception.h>
#include <c10/util/Logging.h>
#include <c10/util/StringUtil.h>
#include <torch/csrc/distributed/c10d/Types.hpp>

namespace commd
{

namespace
{

using std::chrono::milliseconds;
using Clock = std::chrono::steady_clock;

constexpr milliseconds kDrain{5000};         /* for operations that are about to finish */
constexpr milliseconds kAbortGrace{2000};    /* for operations that an abort has ended */
constexpr milliseconds kCallbackGrace{1000}; /* at exit, for callbacks that run */
constexpr milliseconds kForever =
    std::chrono::hours(100 * 365 * 24);  /* the clock counts 292 years */
constexpr milliseconds kStoreSlice{500}; /* Ctrl-C is noticed this often in the rendezvous */
constexpr size_t kTokens = 64;           /* rank 0 removes a token as soon as its group is there */

std::atomic<bool> exiting_flag{false};
std::atomic<bool> gone_flag{false};

std::string join_ranks(const std::vector<int64_t> &ranks)
{
    std::string text;

    for (int64_t rank : ranks)
        text += (text.empty() ? "" : ",") + std::to_string(rank);
    return text;
}

std::string store_key(const GroupSpec &spec)
{
    return "commd/token/" + (spec.ranks.empty() ? "world" : join_ranks(spec.ranks)) + "/" + spec.id;
}

/* At most 255 bytes, and readable in `commctl groups`. */
std::string group_name(const GroupSpec &spec, const std::string &token)
{
    std::string id = spec.id.substr(0, 64);

    for (char &c : id) {
        if (c <= ' ' || c > '~')
            c = '_';
    }
    std::string ranks = join_ranks(spec.ranks);
    if (ranks.size() > 64)
        ranks = ranks.substr(0, 61) + "...";
    return "torch/" + token + "/" + id + (ranks.empty() ? "" : "[" + ranks + "]");
}

/* True if @key came within @slice. A store that fails for another reason is passed on. */
bool wait_for_key(c10d::Store &store, const std::string &key, milliseconds slice)
{
    auto begin = Clock::now();

    try {
        store.wait({key}, slice);
        return true;
    } catch (const c10::DistNetworkError &) {
        throw;
    } catch (const c10::Error &) {
        /* Stores time out with different types; the clock tells a time-out from an error. */
        if (Clock::now() - begin < slice * 9 / 10)
            throw;
        return false;
    }
}

/* How commctl calls what @spec's rank waits for: its job, and the group. */
std::string waits_for(const GroupSpec &spec)
{
    const char *address = std::getenv("MASTER_ADDR"), *port = std::getenv("MASTER_PORT");

    return group_name(spec, address && port ? c10::str(address, ":", port) : "store");
}

/* False if this process has taken @token before. */
bool use_token(Process &p, const std::string &token)
{
    std::lock_guard<std::mutex> guard(p.lock);

    if (std::find(p.used_tokens.begin(), p.used_tokens.end(), token) != p.used_tokens.end())
        return false;
    p.used_tokens.push_back(token);
    if (p.used_tokens.size() > kTokens)
        p.used_tokens.pop_front();
    return true;
}

std::string fetch_token(const GroupSpec &spec, const std::string &key)
{
    const bool limited = spec.timeout.count() > 0;
    const auto deadline = Clock::now() + spec.timeout;
    Process &p = process();
    std::optional<Waiting> waiting;

    for (;;) {
        auto left = kStoreSlice;
        if (limited)
            left = std::chrono::duration_cast<milliseconds>(deadline - Clock::now());
        if (left.count() <= 0) {
            std::rethrow_exception(backend_error(c10::str(
                "commd: group '", spec.id, "' of ", spec.size, " ranks: timeout after ",
                limit_text(spec.timeout), ": rank 0 has not come (this is rank ", spec.rank, ")")));
        }
        if (wait_for_key(*spec.store, key, std::min(left, kStoreSlice))) {
            auto value = spec.store->get(key);
            std::string token(value.begin(), value.end());
            if (!token.empty() && use_token(p, token))
                return token;
            /* That one is of the last group by this name: rank 0 is about to replace it, or has
             * removed it since it was seen. */
        } else if (!waiting && !waiting_now.load()) {
            waiting.emplace(waits_for(spec), spec.rank, spec.size);
        }
        if (check_signals(nullptr))
            raise_pending();
        std::this_thread::sleep_for(milliseconds(2));
    }
}

std::string agree_on_token(const GroupSpec &spec, const std::string &key)
{
    if (spec.rank != 0)
        return fetch_token(spec, key);
    std::string token = random_token();
    spec.store->set(key, std::vector<uint8_t>(token.begin(), token.end()));
    return token;
}

void forget_token(const GroupSpec &spec, const std::string &key)
{
    if (spec.rank != 0)
        return;
    try {
        spec.store->deleteKey(key);
    } catch (const c10::Error &) {
        /* A store that cannot delete leaves a token that nobody takes twice. */
    }
}

} // namespace

std::string random_token()
{
    unsigned char bytes[12];
    char text[2 * sizeof(bytes) + 1];

    TORCH_CHECK(getrandom(bytes, sizeof(bytes), 0) == sizeof(bytes), "commd: getrandom failed");
    for (size_t i = 0; i < sizeof(bytes); i++)
        snprintf(text + 2 * i, 3, "%02x", bytes[i]);
    return text;
}

std::exception_ptr backend_error(const std::string &message)
{
    return std::make_exception_ptr(C10_BUILD_ERROR(DistBackendError, message));
}

std::string limit_text(milliseconds limit)
{
    const bool whole = limit.count() % 1000 == 0;

    return c10::str(whole ? limit.count() / 1000 : limit.count(), whole ? " s" : " ms");
}

std::exception_ptr backend_error(const commd_error &error)
{
    std::string text = error.message[0] ? error.message : commd_strerror(error.code);

    return backend_error(text.rfind("commd: ", 0) == 0 ? text : "commd: " + text);
}

void throw_last_error(int code)
{
    const commd_error error = *commd_last_error(); /* a handler of signals may make calls, too */

    if (code == COMMD_E_INTERRUPTED)
        raise_pending_any();
    std::rethrow_exception(backend_error(error));
}

milliseconds checked_timeout(const char *what, milliseconds timeout)
{
    TORCH_CHECK_VALUE(timeout.count() >= 0, "commd: ", what, ": timeout is ", timeout.count(),
                      " ms; allowed: from 0 (no limit)");
    return timeout > kForever ? milliseconds(0) : timeout;
}

int64_t to_timeout_ms(const char *what, milliseconds timeout)
{
    if (timeout == c10d::kUnsetTimeout)
        return 0;
    timeout = checked_timeout(what, timeout);
    return timeout.count() > 0 ? timeout.count() : -1;
}

Group::Group(std::string name, commd_group *handle, State state)
    : name_(std::move(name)), pid_(getpid()), generation_(generation()), handle_(handle),
      state_(state)
{
}

at::Tensor empty(const std::vector<int64_t> &sizes, at::ScalarType dtype)
{
    const int64_t count = c10::multiply_integers(sizes);
    commd_context *context = context_ref_if_any();
    void *memory = nullptr;

    TORCH_CHECK(context, "commd.torch.empty() needs a process group of the backend \"commd\": call "
                         "torch.distributed.init_process_group(\"commd\") before");
    int r = commd_alloc(context, static_cast<size_t>(count) * c10::elementSize(dtype), &memory);
    context_unref(); /* the memory does not need it */
    if (r)
        throw_last_error(r);
    return at::from_blob(memory, sizes, [](void *p) { commd_free(p); }, at::dtype(dtype));
}

void Group::place(const std::string &id, int rank, int size, std::vector<int64_t> ranks)
{
    for (int i = static_cast<int>(ranks.size()); i < size; i++)
        ranks.push_back(i); /* the whole world has none */
    auto recorded = std::make_shared<RecordedGroup>(id, rank, std::move(ranks));
    if (recorded_)
        recorded->set_timeout(recorded_->timeout_of(0));
    recorded_ = std::move(recorded);
}

/* Of the process's groups, for its end. */
void Group::remember(const std::shared_ptr<Group> &group)
{
    static const int at_end = std::atexit([] { gone_flag.store(true); });
    Process &p = process();
    std::lock_guard<std::mutex> guard(p.lock);

    (void)at_end;
    p.groups.push_back(group);
}

/* Its members have their tokens: joins. */
static int join_members(commd_context *context, const GroupSpec &spec, const std::string &name,
                        commd_group **handle)
{
    const int64_t limit = to_timeout_ms("join", spec.timeout);

    if (!spec.parent)
        return commd_group_join(context, name.c_str(), spec.rank, spec.size, limit, handle);
    Group::Call call(*spec.parent);
    return commd_group_subgroup(call.handle(), name.c_str(), spec.places.data(), spec.size, limit,
                                handle);
}

std::shared_ptr<Group> Group::join(const GroupSpec &spec)
{
    commd_context *context = context_ref();
    commd_group *handle = nullptr;
    std::string name, key = store_key(spec);
    const bool by_store = spec.meeting.empty();

    try {
        name = group_name(spec, by_store ? agree_on_token(spec, key) : spec.meeting);
        int r = join_members(context, spec, "/" + name, &handle);
        if (by_store)
            forget_token(spec, key);
        if (r)
            throw_last_error(r);
    } catch (...) {
        context_unref();
        throw;
    }
    std::shared_ptr<Group> group(new Group(name, handle));
    group->place(spec.id, spec.rank, spec.size, spec.ranks);
    group->set_timeout(spec.timeout);
    remember(group);
    raise_pending_any(); /* interrupted when all had agreed already */
    return group;
}

bool Group::ours() const
{
    return generation_ == generation();
}

/* Entering counts first and looks at state_ then; close() does it the other way round. Both are
 * sequentially consistent, so at least one of them sees the other. */
Group::Call::Call(Group &group) : group_(group)
{
    if (C10_UNLIKELY(!group.ours()))
        group.refuse(State::OPEN);
    group.users_.fetch_add(1);
    const State state = group.state_.load();
    if (C10_UNLIKELY(state != State::OPEN)) {
        group.release();
        group.refuse(state);
    }
}

void Group::refuse(State state)
{
    std::string why;

    switch (state) {
    case State::UNJOINED:
        why = "has no members yet: it was made with enable_reconfigure=True, and waits for the "
              "first torch.distributed._reconfigure()";
        break;
    case State::RECOVERING:
        why = "is being recovered by another thread";
        break;
    case State::CLOSED:
        why = exiting() ? "is closed: the program has ended" : "is closed: it was destroyed";
        break;
    case State::OPEN:
        why = c10::str("belongs to process ", pid_, "; a forked process has to make its own");
        break;
    }
    std::rethrow_exception(backend_error(c10::str("commd: group ", name(), " ", why)));
}

void Group::release()
{
    users_.fetch_sub(1);
    if (C10_UNLIKELY(watchers_.load())) {
        std::lock_guard<std::mutex> guard(lock_);
        idle_.notify_all();
    }
}

void Group::add_pending()
{
    pending_.fetch_add(1);
    users_.fetch_add(1);
}

void Group::remove_pending()
{
    pending_.fetch_sub(1);
    release();
}

bool Group::wait_pending(milliseconds limit)
{
    std::unique_lock<std::mutex> lock(lock_);

    watchers_.fetch_add(1);
    bool done = idle_.wait_for(lock, limit, [this] { return pending_.load() == 0; });
    watchers_.fetch_sub(1);
    return done;
}

bool Group::wait_idle(milliseconds limit)
{
    std::unique_lock<std::mutex> lock(lock_);

    watchers_.fetch_add(1);
    bool idle = idle_.wait_for(lock, limit, [this] { return users_.load() == 0; });
    watchers_.fetch_sub(1);
    return idle;
}

void Group::leave()
{
    Process &p = process();

    commd_group_leave(handle_);
    handle_ = nullptr;
    std::lock_guard<std::mutex> guard(p.lock);
    std::vector<std::weak_ptr<Group>> others;
    for (auto &weak : p.groups) {
        auto group = weak.lock();
        if (group && group.get() != this)
            others.push_back(weak);
    }
    p.groups.swap(others);
}

void Group::close()
{
    if (exiting())
        return close_at_exit();
    if (!ours() || state_.exchange(State::CLOSED) == State::CLOSED)
        return;
    if (!wait_idle(kDrain)) {
        commd_group_abort(handle_, "a rank destroyed the group while operations were pending");
        if (!wait_idle(kAbortGrace))
            return; /* leaked, with its connection: freeing it under a running call is worse */
    }
    leave();
    log_owed();
    context_unref();
}

void Group::close_at_exit()
{
    if (!ours() || gone() || state_.exchange(State::CLOSED) == State::CLOSED)
        return;
    /* With something pending the process just ends: the others are told that this rank is lost,
     * with its pid, which says more than an abort. */
    if (users_.load())
        return;
    commd_group_leave(handle_);
    handle_ = nullptr;
}

void Group::abort(const char *reason)
{
    if (!ours())
        return;
    users_.fetch_add(1); /* as Call: keeps the handle alive */
    const State state = state_.load();
    if (state == State::OPEN || state == State::RECOVERING) {
        {
            std::lock_guard<std::mutex> guard(lock_); /* reconfigure() may change it */
            if (handle_)
                commd_group_abort(handle_, reason);
        }
        set_failure(COMMD_E_ABORTED);
    }
    release();
}

void Group::set_timeout(milliseconds timeout)
{
    Call call(*this);

    commd_group_set_timeout(call.handle(), timeout.count() > 0 ? timeout.count() : -1);
    recorded_->set_timeout(timeout.count() > 0 ? timeout.count() : -1);
}

/* A rank that gives up at its limit aborts the group for the others. They had the same limit, and
 * one of them is the first by chance: all shall say that it was a time-out. */
static int cause_of(const commd_error &error)
{
    bool timed_out =
        error.code == COMMD_E_ABORTED && strstr(error.message, " ran into its timeout");

    return timed_out ? COMMD_E_TIMEOUT : error.code;
}

void Group::note_failure(const commd_error &error)
{
    set_failure(cause_of(error));
}

void Group::set_failure(int code)
{
    int none = 0;

    if (!commd_error_breaks_group(code) ||
        !failure_.compare_exchange_strong(none, code, std::memory_order_relaxed))
        return;
    std::lock_guard<std::mutex> guard(lock_);
    for (const auto &[id, hook] : hooks_)
        call_back(nullptr, 0, hook);
}

void Group::set_hook(int64_t id, std::function<void()> hook)
{
    std::lock_guard<std::mutex> guard(lock_);

    if (hook)
        hooks_[id] = std::move(hook);
    else
        hooks_.erase(id);
}

void Group::owe(std::exception_ptr error)
{
    std::lock_guard<std::mutex> guard(lock_);

    if (!owed_) /* the first is the cause */
        owed_ = error;
    owes_.store(true, std::memory_order_release);
}

void Group::leave_behind(std::weak_ptr<Left> operation)
{
    std::lock_guard<std::mutex> guard(lock_);

    left_.push_back(std::move(operation));
}

/* The oldest ones; of those behind one that has not ended the library's thread tells. */
void Group::settle_left()
{
    std::unique_lock<std::mutex> lock(lock_);

    while (!left_.empty()) {
        auto oldest = left_.front().lock();
        if (oldest && !oldest->ended())
            return;
        left_.pop_front();
        lock.unlock();
        if (oldest)
            oldest->settle();
        oldest.reset();
        lock.lock();
    }
}

void Group::throw_owed()
{
    settle_left();
    if (C10_LIKELY(!owes_.load(std::memory_order_acquire)))
        return;
    std::unique_lock<std::mutex> lock(lock_);
    auto error = std::exchange(owed_, nullptr);
    owes_.store(false, std::memory_order_relaxed);
    lock.unlock();
    if (error)
        std::rethrow_exception(error);
}

/* At its end: better late than never. */
void Group::log_owed()
{
    try {
        throw_owed();
    } catch (const std::exception &e) {
        LOG(ERROR) << "an operation failed, and no later call told of it: " << e.what();
    }
}

bool exiting()
{
    return exiting_flag.load(std::memory_order_acquire);
}

bool gone()
{
    return gone_flag.load(std::memory_order_acquire);
}

void leave_all_at_exit()
{
    Process &p = process();
    std::unique_lock<std::mutex> lock(p.lock, std::try_to_lock);

    exiting_flag.store(true, std::memory_order_release);
    stop_callbacks(kCallbackGrace);
    if (!lock.owns_lock())
        return;
    auto groups = p.groups;
    lock.unlock();
    for (auto &weak : groups) {
        if (auto group = weak.lock())
            group->close_at_exit();
    }
}

} // namespace commd
