/* group.h - one commd group. See group.cpp for the model. */
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <exception>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include <sys/types.h>

#include <commd/commd.h>
#include <ATen/ATen.h>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include "connection.h"
#include "recorder.h"

namespace commd
{

/* A torch DistBackendError with the library's text. */
std::exception_ptr backend_error(const std::string &message);
std::exception_ptr backend_error(const commd_error &error);
/* As it was given, more or less: "20 s", "1500 ms". */
std::string limit_text(std::chrono::milliseconds limit);
/* Throws what the last failed library call of this thread said; Ctrl-C as Python's exception. */
[[noreturn]] void throw_last_error(int code);
/* A limit of @what: 0 is none, and so is what no clock can count; refuses what is negative. */
std::chrono::milliseconds checked_timeout(const char *what, std::chrono::milliseconds timeout);
/* Of what a program gives, less than 1 ms is 1 ms: 0 would be none. */
template <class Duration> std::chrono::milliseconds limit_of(Duration timeout)
{
    auto ms = std::chrono::duration_cast<std::chrono::milliseconds>(timeout);

    return timeout.count() > 0 && ms.count() == 0 ? std::chrono::milliseconds(1) : ms;
}
/* As checked_timeout(), as the library counts: unset (-1) is the group's (0), none (0) is -1. */
int64_t to_timeout_ms(const char *what, std::chrono::milliseconds timeout);

class Group;

struct GroupSpec {
    c10::intrusive_ptr<c10d::Store> store;
    int rank;
    int size;
    std::chrono::milliseconds timeout; /* 0: none */
    std::string id;                    /* torch's group name */
    std::vector<int64_t> ranks;        /* global ranks; empty for the whole world */
    /* Not empty: all know this token already, and need no store; see Group::agree_on_meeting(). */
    std::string meeting;
    /* All are in this group, and have these ranks there: it tells of those that cannot come. */
    std::shared_ptr<Group> parent;
    std::vector<int> places;
    bool reconfigurable = false; /* enable_reconfigure=True */
};

std::string random_token();

/* What a recovery is asked for; see struct commd_recover_options. */
struct RecoverySpec {
    std::string name; /* where ranks and new processes meet */
    int policy = COMMD_RECOVER_SHRINK;
    int size = 0, min_size = 0;
    int64_t wait_ms = 0, timeout_ms = 0;
};

/* A life of a group. */
struct Epoch {
    int rank, size;
    uint64_t number;
    std::vector<int> before; /* of each rank: which it was; -1: a new process */
};

/* An operation that nobody asks any more. */
class Left
{
  public:
    virtual ~Left() = default;
    virtual bool ended() const = 0;
    /* It has: what it failed with is owed. */
    virtual void settle() = 0;
};

class Group
{
  public:
    /* Collective over the members. Throws DistBackendError naming who did not come. */
    static std::shared_ptr<Group> join(const GroupSpec &spec);
    /* In no group of commd yet: reconfigure() gives it one. */
    static std::shared_ptr<Group> unjoined(const std::string &name);
    /* Of a new process: takes seat @rank (-1: any) of a group that is recovered elsewhere. It has
     * to be placed, see there. */
    static std::shared_ptr<Group> rejoin(int rank, const RecoverySpec &spec);

    /* Held during every library call, so that nobody frees the group under it.
     * Throws if the group is closed or was made by another process. */
    class Call
    {
      public:
        explicit Call(Group &group);
        ~Call()
        {
            group_.release();
        }
        Call(const Call &) = delete;
        Call &operator=(const Call &) = delete;
        commd_group *handle() const
        {
            return group_.handle_;
        }

      private:
        Group &group_;
    };

    /* An asynchronous operation holds one from its start, during a Call, to its completion. */
    void add_pending();
    void remove_pending();
    /* True if nothing is pending within @limit. */
    bool wait_pending(std::chrono::milliseconds limit);

    /* Gives pending operations a moment to finish, then leaves. Never hangs, never throws. */
    void close();
    /* As close(), without waiting: the process is about to exit. */
    void close_at_exit();
    void abort(const char *reason);
    /* Brings the group into its next epoch; who lives calls it. No other thread calls anything of
     * the group meanwhile, but abort(). Throws, and leaves all as it was. */
    Epoch recover(const RecoverySpec &spec);
    Epoch epoch();
    /* Joins another group of commd in place of the present one, which is left, and whose pending
     * operations end. Collective over the members of the other. Throws, and leaves all as it was,
     * but for those operations. */
    void reconfigure(const std::string &name, int rank, int size, std::chrono::milliseconds limit);
    /* In torch's world: its name, and the global ranks of its members; none: the whole world. */
    void place(const std::string &id, int rank, int size, std::vector<int64_t> ranks);
    /* Collective: a token that all have, so that groups of theirs can meet without a store. */
    std::string agree_on_meeting();
    void set_timeout(std::chrono::milliseconds timeout);

    /* Counts the calls of this rank: torch compares it between ranks, so it must not depend on
     * how far asynchronous operations have come. */
    uint64_t next_sequence()
    {
        return issued_.fetch_add(1, std::memory_order_relaxed) + 1;
    }
    uint64_t sequence() const
    {
        return issued_.load(std::memory_order_relaxed);
    }
    /* Remembers the first failure that ended the group, and calls the hooks. */
    void note_failure(const commd_error &error);
    /* @hook: called once the group has failed, on a thread of its own; empty: none any more. */
    void set_hook(int64_t id, std::function<void()> hook);
    /* Its code, 0: the group is fine. Also if no operation has met it yet. Does not wait. */
    int failure();
    /* What an operation failed with that nobody waits for: the next call on a GPU throws it. */
    void owe(std::exception_ptr error);
    void throw_owed();
    /* Looked at by throw_owed(): a stream may have passed it before the library's thread says so.
     * Whoever goes on after a synchronisation shall hear of it at the same call on all ranks. */
    void leave_behind(std::weak_ptr<Left> operation);
    bool joined() const
    {
        return state_.load() != State::UNJOINED;
    }
    /* False in a process forked after the group was joined: nothing in it may be used there. */
    bool ours() const;
    std::string name()
    {
        std::lock_guard<std::mutex> guard(lock_);
        return name_;
    }
    const std::shared_ptr<RecordedGroup> &recorded() const
    {
        return recorded_;
    }

  private:
    /* UNJOINED or OPEN at first; RECOVERING and OPEN alternate; CLOSED is the end. Calls are
     * welcome in OPEN only. */
    enum class State { UNJOINED, OPEN, RECOVERING, CLOSED };
    class Recovery;

    Group(std::string name, commd_group *handle, State state = State::OPEN);
    [[noreturn]] void refuse(State state);
    static void remember(const std::shared_ptr<Group> &group);
    void forget_operations();
    void set_failure(int code);
    Epoch read_epoch() const;
    void release();
    bool wait_idle(std::chrono::milliseconds limit);
    void leave();
    void settle_left();
    void log_owed();

    std::string name_;                        /* under lock_ */
    std::shared_ptr<RecordedGroup> recorded_; /* changed by place() */
    const pid_t pid_;                         /* for messages */
    const unsigned generation_;
    commd_group *handle_; /* owned until leave(); NULL if UNJOINED. Changed under lock_ */
    std::atomic<int> failure_{0};
    std::atomic<bool> owes_{false};
    std::atomic<uint64_t> issued_{0};
    /* See Call: who uses the handle, and whether new users are still welcome. */
    std::atomic<int> users_{0};
    std::atomic<State> state_{State::OPEN};
    std::atomic<int> pending_{0};  /* of the users: asynchronous operations */
    std::atomic<int> watchers_{0}; /* threads that wait on idle_ */
    std::mutex lock_;
    std::condition_variable idle_;
    std::exception_ptr owed_;                        /* under lock_ */
    std::deque<std::weak_ptr<Left>> left_;           /* too; in the order of the calls */
    std::map<int64_t, std::function<void()>> hooks_; /* too */
};

/* A tensor of zeros in memory of commd_alloc(), of the connection that the groups share. */
at::Tensor empty(const std::vector<int64_t> &sizes, at::ScalarType dtype);

/* True once the program has ended: callbacks, which may be Python's, do not run any more. */
bool exiting();
/* True once the process's own exit has begun: completions must leave everything alone. */
bool gone();
/* The program has ended (_at_exit.py): leaves all groups that are idle. */
void leave_all_at_exit();

} // namespace commd
