/* recover.cpp - a group in its next epoch: in place, so that DDP and FSDP keep the process group
 * that they hold. What Python has written down about groups is put right in _recover.py.
 *
 * The gate: a group that recovers is RECOVERING. Calls are refused then, and commd_group_recover()
 * begins when nobody is inside of one. The recovery itself is a user of the handle, so that who
 * closes the group meanwhile does not free it under the library.
 *
 * Rank and size: torch keeps them in three places, in the process group, in its backend and in the
 * maps of distributed_c10d.py. The first two are members that are `const` in torch before 2.14, and
 * have no setter in any release; getRank() and getSize(), which DDP, FSDP and dist.* ask, return
 * them. They are written here by const_cast, through names that the compiler checks, not offsets.
 * No object is defined const, so that is what the language allows; and who reads them does so
 * through functions of another object file, or after a call of one.
 *
 * Stores: after a recovery none is needed. That of init_process_group() may have died with the host
 * of rank 0. The ranks agree on a token over the group itself; groups that are made later meet
 * under a name with that in it (GroupSpec::meeting).
 */
#include "backend.h"
#include "python.h"

#include <utility>

#include <c10/util/StringUtil.h>

namespace commd
{

class Group::Recovery
{
  public:
    /* @revokes: what is pending is ended, and a group that was never joined will do. */
    Recovery(Group &group, bool revokes) : group_(group), was_(group.state_.load())
    {
        const bool fits = was_ == State::OPEN || (revokes && was_ == State::UNJOINED);

        if (!fits || !group.ours())
            group.refuse(was_);
        if (!group.state_.compare_exchange_strong(was_, State::RECOVERING))
            group.refuse(was_);
        if (!group.wait_idle(revokes ? milliseconds(0) : kDrain)) {
            if (revokes)
                commd_group_abort(group.handle_, "this rank goes on in another group");
            if (!revokes || !group.wait_idle(kAbortGrace)) {
                back_to(was_);
                std::rethrow_exception(backend_error(
                    "commd: group " + group.name() +
                    " cannot be recovered: operations of this rank are pending in it, which is "
                    "not broken. Wait for them, or abort() the group"));
            }
        }
        group.users_.fetch_add(1); /* as Call */
        if (group.state_.load() != State::RECOVERING) {
            group.release();
            group.refuse(State::CLOSED);
        }
    }
    ~Recovery()
    {
        back_to(was_);
        group_.release();
    }
    Recovery(const Recovery &) = delete;
    Recovery &operator=(const Recovery &) = delete;
    void succeeded()
    {
        was_ = State::OPEN;
    }

  private:
    /* Not if it was closed meanwhile. */
    void back_to(State state)
    {
        State was = State::RECOVERING;
        group_.state_.compare_exchange_strong(was, state);
    }

    Group &group_;
    State was_;
};

static commd_recover_options options_of(const RecoverySpec &spec)
{
    commd_recover_options options = {};

    options.size_of = sizeof(options);
    options.name = spec.name.empty() ? nullptr : spec.name.c_str();
    options.policy = spec.policy;
    options.size = spec.size;
    options.min_size = spec.min_size;
    options.wait_ms = spec.wait_ms;
    options.timeout_ms = spec.timeout_ms;
    return options;
}

Epoch Group::read_epoch() const
{
    Epoch now;

    now.rank = commd_group_rank(handle_);
    now.size = commd_group_size(handle_);
    now.number = commd_group_epoch(handle_);
    for (int rank = 0; rank < now.size; rank++)
        now.before.push_back(commd_group_rank_before(handle_, rank));
    return now;
}

Epoch Group::epoch()
{
    Call call(*this);

    return read_epoch();
}

/* What is known of the older epoch, and is not true of the next one. */
void Group::forget_operations()
{
    std::lock_guard<std::mutex> guard(lock_);

    owed_ = nullptr;
    owes_.store(false, std::memory_order_relaxed);
    left_.clear();
    issued_.store(0, std::memory_order_relaxed);
    failure_.store(0, std::memory_order_relaxed);
}

Epoch Group::recover(const RecoverySpec &spec)
{
    const commd_recover_options options = options_of(spec);
    Recovery recovery(*this, false);

    int r = commd_group_recover(handle_, &options);
    if (r)
        throw_last_error(r);
    forget_operations();
    if (!spec.name.empty()) {
        std::lock_guard<std::mutex> guard(lock_);
        name_ = spec.name;
    }
    raise_pending_any(); /* interrupted when all had agreed already */
    return read_epoch();
}

std::shared_ptr<Group> Group::rejoin(int rank, const RecoverySpec &spec)
{
    const commd_recover_options options = options_of(spec);
    commd_context *context = context_ref();
    commd_group *handle = nullptr;

    int r = commd_group_rejoin(context, spec.name.c_str(), rank, &options, &handle);
    if (r) {
        const commd_error error = *commd_last_error();
        context_unref();
        if (r == COMMD_E_INTERRUPTED)
            raise_pending_any();
        std::rethrow_exception(backend_error(error));
    }
    std::shared_ptr<Group> group(new Group(spec.name, handle));
    remember(group);
    raise_pending_any();
    return group;
}

std::string Group::agree_on_meeting()
{
    Call call(*this);
    std::string token = random_token();

    int r = commd_broadcast(call.handle(), token.data(), token.size(), COMMD_U8, 0);
    if (r) {
        note_failure(*commd_last_error());
        throw_last_error(r);
    }
    return token;
}

std::shared_ptr<Group> Group::unjoined(const std::string &name)
{
    context_ref();
    std::shared_ptr<Group> group(new Group(name, nullptr, State::UNJOINED));
    remember(group);
    return group;
}

void Group::reconfigure(const std::string &name, int rank, int size, milliseconds limit)
{
    Recovery recovery(*this, true);
    commd_context *context = context_ref();
    commd_group *handle = nullptr;

    int r = commd_group_join(context, ("/" + name).c_str(), rank, size,
                             to_timeout_ms("reconfigure", limit), &handle);
    context_unref(); /* this group holds it, too */
    if (r)
        throw_last_error(r);
    {
        std::lock_guard<std::mutex> guard(lock_);
        std::swap(handle, handle_);
        name_ = name;
    }
    commd_group_leave(handle);
    forget_operations();
    recovery.succeeded();
    raise_pending_any();
}

int Group::failure()
{
    if (ours()) {
        users_.fetch_add(1); /* as Call */
        if (state_.load() == State::OPEN && commd_group_check(handle_))
            note_failure(*commd_last_error());
        release();
    }
    return failure_.load(std::memory_order_relaxed);
}

namespace
{

/* torch's classes, as far as they keep their members from others. */
struct GroupMembers : c10d::ProcessGroup {
    static auto rank()
    {
        return &GroupMembers::rank_;
    }
    static auto size()
    {
        return &GroupMembers::size_;
    }
};

struct BackendMembers : c10d::Backend {
    static auto rank()
    {
        return &BackendMembers::rank_;
    }
    static auto size()
    {
        return &BackendMembers::size_;
    }
};

template <class Members, class Object> void renumber(Object &object, int rank, int size)
{
    const_cast<int &>(object.*Members::rank()) = rank;
    const_cast<int &>(object.*Members::size()) = size;
}

} // namespace

/* Of what counts, the next epoch begins anew: new processes do. */
void ProcessGroupCommd::become(int rank, int size)
{
    renumber<BackendMembers, c10d::Backend>(*this, rank, size);
    monitored_.store(0);
    last_device_.forget();
}

/* @pg: of which this is the only backend. */
Epoch ProcessGroupCommd::recover(c10d::ProcessGroup &pg, const RecoverySpec &spec)
{
    abandonCoalescing();
    Epoch now = group_->recover(spec);

    renumber<GroupMembers>(pg, now.rank, now.size);
    become(now.rank, now.size);
    return now;
}

void ProcessGroupCommd::place(std::vector<int64_t> ranks)
{
    ranks_ = std::move(ranks);
    group_->place(id_, rank_, size_, ranks_);
}

void ProcessGroupCommd::agree_on_meeting()
{
    if (connected_) /* as a new process has done in init_process_group() */
        eagerConnectSingleDevice(*connected_);
    meeting_ = group_->agree_on_meeting();
}

} // namespace commd
