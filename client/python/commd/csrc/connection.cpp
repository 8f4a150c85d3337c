/* connection.cpp - the connection that all groups of a process share.
 *
 * A process connects when its first group is made and disconnects when its last one
 * is closed. The connection belongs to the process that made it: after fork() the child sees
 * that it is another one, forgets (leaks) what it inherited and connects anew if it needs to.
 * Nothing inherited is locked or freed there, because a lock may have been held at the fork and the
 * library's thread does not exist in the child. */
#include "connection.h"

#include <utility>

#include <pthread.h>

#include "group.h"
#include "python.h"

namespace commd
{

std::atomic<int> waiting_now{0};

namespace
{

constexpr int64_t kTellMs = 5000; /* to tell commd that a rank waits */

std::atomic<unsigned> forks{0};

} // namespace

Process &process()
{
    static std::atomic<Process *> current{nullptr};
    Process *p = current.load(std::memory_order_acquire);

    while (!p || p->generation != generation()) {
        auto *fresh = new Process;
        if (current.compare_exchange_strong(p, fresh))
            return *fresh;
        delete fresh; /* another thread was faster: p is its */
    }
    return *p;
}

commd_context *context_ref()
{
    Process &p = process();
    std::lock_guard<std::mutex> guard(p.lock);

    if (!p.context) {
        if (p.waiting)
            p.context = std::exchange(p.waiting, nullptr)->take();
        int r = p.context ? 0 : commd_connect(nullptr, &p.context);
        if (r)
            throw_last_error(r);
        commd_set_interrupt(p.context, check_signals, nullptr);
    }
    p.users++;
    return p.context;
}

commd_context *context_ref_if_any()
{
    Process &p = process();
    std::lock_guard<std::mutex> guard(p.lock);

    if (p.context)
        p.users++;
    return p.context;
}

void context_unref()
{
    Process &p = process();
    std::lock_guard<std::mutex> guard(p.lock);

    if (--p.users == 0) {
        commd_disconnect(p.context);
        p.context = nullptr;
    }
}

unsigned generation()
{
    static const int watched =
        pthread_atfork(nullptr, nullptr, [] { forks.fetch_add(1, std::memory_order_relaxed); });

    (void)watched;
    return forks.load(std::memory_order_relaxed);
}

Waiting::Waiting(const std::string &name, int rank, int size)
{
    commd_options options = {};

    options.size = sizeof(options);
    options.timeout_ms = kTellMs;
    options.waits_for = name.c_str();
    options.waits_rank = static_cast<unsigned>(rank);
    options.waits_size = static_cast<unsigned>(size);
    if (rank < 0 || size <= rank || commd_connect(&options, &context_)) {
        context_ = nullptr;
        return;
    }
    told_ = true;
    waiting_now.fetch_add(1);
    Process &p = process();
    std::lock_guard<std::mutex> guard(p.lock);
    if (!p.context)
        p.waiting = this;
}

Waiting::~Waiting()
{
    close();
}

void Waiting::close()
{
    {
        Process &p = process();
        std::lock_guard<std::mutex> guard(p.lock);
        if (p.waiting == this)
            p.waiting = nullptr;
    }
    commd_disconnect(take());
    if (std::exchange(told_, false))
        waiting_now.fetch_sub(1);
}

commd_context *Waiting::take()
{
    return std::exchange(context_, nullptr);
}

} // namespace commd
