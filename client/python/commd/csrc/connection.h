/* connection.h - the connection that all groups of a process share. See connection.cpp. */
#pragma once

#include <atomic>
#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include <commd/commd.h>

namespace commd
{

class Group;
class Waiting;

/* Forks between the first process that used this and the present one. getpid() would tell too,
 * but is a system call, and this is asked in every operation. */
unsigned generation();

/* What belongs to the process rather than to a group. Never destroyed: at exit the library's
 * thread may still be running. */
struct Process {
    const unsigned generation = commd::generation();
    std::mutex lock;
    commd_context *context = nullptr;
    int users = 0;                       /* groups that hold the context */
    Waiting *waiting = nullptr;          /* its connection becomes the context */
    std::deque<std::string> used_tokens; /* the last kTokens */
    std::vector<std::weak_ptr<Group>> groups;
};

Process &process();

/* The connection, which is made if there is none. Throws what commd says against it. */
commd_context *context_ref();
/* Of groups that there are: a connection of its own would serve none of them. */
commd_context *context_ref_if_any();
void context_unref();

/* A rank that waits in the store, before it can join. commctl shows it as long as this lives, or
 * until the join; where commd cannot be told, the join will say why. A process that has no
 * connection yet joins over this one: with two of each rank a job would need twice its share of
 * clients. */
class Waiting
{
  public:
    Waiting(const std::string &name, int rank, int size);
    ~Waiting();
    Waiting(const Waiting &) = delete;
    Waiting &operator=(const Waiting &) = delete;
    void close();
    commd_context *take(); /* the connection: the caller's now */

  private:
    commd_context *context_ = nullptr;
    bool told_ = false;
};

/* How many ranks of this process commd was told of: see Waiting. */
extern std::atomic<int> waiting_now;

} // namespace commd
