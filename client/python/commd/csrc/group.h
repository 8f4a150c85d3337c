/* group.h - one commd group. See group.cpp for the model. */
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <exception>
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

struct GroupSpec {
    c10::intrusive_ptr<c10d::Store> store;
    int rank;
    int size;
    std::chrono::milliseconds timeout; /* 0: none */
    std::string id;                    /* torch's group name */
    std::vector<int64_t> ranks;        /* global ranks; empty for the whole world */
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
    /* Remembers the first failure that ended the group. */
    void note_failure(int code);
    /* Its code, 0: the group is fine. */
    int failure() const
    {
        return failure_.load(std::memory_order_relaxed);
    }
    /* What an operation failed with that nobody waits for: the next call on a GPU throws it. */
    void owe(std::exception_ptr error);
    void throw_owed();
    /* Looked at by throw_owed(): a stream may have passed it before the library's thread says so.
     * Whoever goes on after a synchronisation shall hear of it at the same call on all ranks. */
    void leave_behind(std::weak_ptr<Left> operation);
    /* False in a process forked after the group was joined: nothing in it may be used there. */
    bool ours() const;
    const std::string &name() const
    {
        return name_;
    }
    const std::shared_ptr<RecordedGroup> &recorded() const
    {
        return recorded_;
    }

  private:
    Group(std::string name, commd_group *handle, std::shared_ptr<RecordedGroup> recorded);
    void release();
    bool wait_idle(std::chrono::milliseconds limit);
    void leave();
    void settle_left();
    void log_owed();

    const std::string name_;
    const std::shared_ptr<RecordedGroup> recorded_;
    const pid_t pid_; /* for messages */
    const unsigned generation_;
    commd_group *handle_; /* owned until leave() */
    std::atomic<int> failure_{0};
    std::atomic<bool> owes_{false};
    std::atomic<uint64_t> issued_{0};
    /* See Call: who uses the handle, and whether new users are still welcome. */
    std::atomic<int> users_{0};
    std::atomic<bool> closed_{false};
    std::atomic<int> pending_{0};  /* of the users: asynchronous operations */
    std::atomic<int> watchers_{0}; /* threads that wait on idle_ */
    std::mutex lock_;
    std::condition_variable idle_;
    std::exception_ptr owed_;              /* under lock_ */
    std::deque<std::weak_ptr<Left>> left_; /* too; in the order of the calls */
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
