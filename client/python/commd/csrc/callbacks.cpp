/* callbacks.cpp - threads for what a program hangs on futures.
 *
 * A callback (`then`) may do what the program likes: compute, take the GIL, start an operation,
 * even wait for it (PowerSGD does). On the library's thread it would wait for the very thread it
 * runs on. So a Work that has a future is delivered here: its future is marked, which runs the
 * callbacks, and then those who wait for it are told.
 *
 * Order: all ranks must issue the operations of a group in the same order, also those that
 * callbacks issue. So the jobs of a group run one after the other, as their operations completed,
 * which is the same on all ranks. But what a callback starts and waits for must be delivered while
 * it waits: that is a level deeper, and has a queue of its own. Groups, too, have queues of
 * their own, as operations of different groups never wait for each other.
 *
 * Threads: a queue is served by one thread at a time. A queue that becomes ready wakes an idle
 * thread or starts one; kIdle stay. A thread leaves when it has nothing to do and enough others
 * are idle. They take no signals. In a forked child there are none, and the queues begin anew.
 */
#include "callbacks.h"
#include "group.h"

#include <atomic>
#include <condition_variable>
#include <csignal>
#include <deque>
#include <map>
#include <mutex>
#include <system_error>
#include <thread>

namespace commd
{

namespace
{

constexpr int kIdle = 2; /* what PowerSGD keeps busy */

thread_local int level_here = 0;

using Key = std::pair<const Group *, int>;

class Threads
{
  public:
    const unsigned generation = commd::generation();

    void push(const Key &key, std::function<void()> job)
    {
        std::unique_lock<std::mutex> lock(lock_);
        auto [queue, fresh] = queues_.try_emplace(key);

        queue->second.push_back(std::move(job));
        if (!fresh)
            return; /* it is served, or ready */
        ready_.push_back(key);
        if (idle_ > 0) {
            idle_--; /* here, so that the next push does not count on the same thread */
            wakes_++;
            wake_.notify_one();
        } else if (!start_thread()) {
            run_ready(lock); /* better here than never */
        }
    }

    void stop(std::chrono::milliseconds limit)
    {
        std::unique_lock<std::mutex> lock(lock_);

        stopped_ = true;
        ended_.wait_for(lock, limit, [this] { return running_ == 0; });
    }

  private:
    bool start_thread()
    {
        sigset_t all, before;
        bool started = true;

        sigfillset(&all); /* Ctrl-C is for the main thread */
        pthread_sigmask(SIG_SETMASK, &all, &before);
        try {
            std::thread([this] { serve(); }).detach();
        } catch (const std::system_error &) {
            started = false;
        }
        pthread_sigmask(SIG_SETMASK, &before, nullptr);
        return started;
    }

    void serve()
    {
        std::unique_lock<std::mutex> lock(lock_);

        for (;;) {
            run_ready(lock);
            if (idle_ >= kIdle)
                return;
            idle_++;
            wake_.wait(lock, [this] { return wakes_ > 0; });
            wakes_--;
        }
    }

    void run_ready(std::unique_lock<std::mutex> &lock)
    {
        while (!ready_.empty() && !stopped_) {
            Key key = ready_.front();
            auto queue = queues_.find(key);
            std::function<void()> job = std::move(queue->second.front());

            ready_.pop_front();
            queue->second.pop_front();
            running_++;
            lock.unlock();
            int before = level_here;
            level_here = key.second + 1;
            job();
            job = nullptr; /* whatever it held, before the lock is taken */
            level_here = before;
            lock.lock();
            if (--running_ == 0)
                ended_.notify_all();
            queue = queues_.find(key);
            if (queue->second.empty())
                queues_.erase(queue);
            else
                ready_.push_back(key);
        }
    }

    std::mutex lock_;
    std::condition_variable wake_, ended_;
    std::map<Key, std::deque<std::function<void()>>>
        queues_;            /* none is empty but while it is served */
    std::deque<Key> ready_; /* queues that nobody serves */
    int idle_ = 0;          /* threads that wait and were not woken */
    int wakes_ = 0;         /* threads that were woken and do not know yet */
    int running_ = 0;       /* jobs */
    bool stopped_ = false;
};

/* Never destroyed: its threads outlive main(). Without a lock, which a fork could leave locked. */
Threads &threads()
{
    static std::atomic<Threads *> present{nullptr};
    Threads *p = present.load(std::memory_order_acquire);

    while (!p || p->generation != generation()) { /* the threads of a parent are not ours */
        auto *fresh = new Threads;
        if (present.compare_exchange_strong(p, fresh)) {
            p = fresh;
        } else {
            delete fresh; /* another thread was faster: p is its */
        }
    }
    return *p;
}

} // namespace

int callback_level()
{
    return level_here;
}

void call_back(const Group *group, int level, std::function<void()> job)
{
    threads().push({group, level}, std::move(job));
}

void stop_callbacks(std::chrono::milliseconds limit)
{
    threads().stop(limit);
}

} // namespace commd
