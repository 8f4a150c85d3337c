/* recorder.h - the last collectives of this process, in the form of torch's flight recorder. See
 * recorder.cpp for the model. */
#pragma once

#include <atomic>
#include <memory>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

namespace commd
{

struct Plan;

/* What the recorder knows of a group. */
class RecordedGroup
{
  public:
    /* @ranks: global ones. */
    RecordedGroup(std::string name, int rank, std::vector<int64_t> ranks);

    /* torch says it after the group was made. */
    bool described() const
    {
        return described_.load(std::memory_order_acquire);
    }
    void describe(const std::string &description);
    /* torch's name, and what it says of it */
    std::tuple<std::string, std::string> names() const;
    /* The first rank and the step to the next, where they are equally far apart; else -1. */
    std::pair<int, int> line() const;
    void set_timeout(int64_t timeout_ms)
    {
        timeout_ms_.store(timeout_ms, std::memory_order_relaxed);
    }
    /* Of an operation that asks for @timeout_ms, 0: for the group's. */
    int64_t timeout_of(int64_t timeout_ms) const
    {
        return timeout_ms ? timeout_ms : timeout_ms_.load(std::memory_order_relaxed);
    }

  private:
    friend class Recorder;

    const std::string name_;
    const int64_t global_rank_;
    const std::vector<int64_t> ranks_;
    const size_t id_;
    std::atomic<bool> described_{false};
    std::atomic<int64_t> timeout_ms_{0}; /* of operations that have none of their own */
    /* Under the recorder's lock: */
    std::string description_ = "undefined";
    uint64_t enqueued_ = 0, completed_ = 0; /* the last numbers */
};

/* Names a record; 0: there is none. It may be overwritten by later ones at any time. */
using RecordId = uint64_t;

RecordId record_begin(const std::shared_ptr<RecordedGroup> &group, const Plan &plan,
                      uint64_t sequence, bool started);
void record_started(RecordId id);
/* @error: NULL after success. The first one in this process is written to a file, if asked for. */
void record_end(RecordId id, const char *error);

/* All records, the oldest first: pickled, for torch's analyser, or as JSON, for its pages. Neither
 * needs the GIL. */
std::string recorded_pickle(bool only_active);
std::string recorded_json(bool only_active);
/* Lets the debug pages of torch.distributed ask this process: "commd_fr_trace_json". */
void register_recorder_handler();

} // namespace commd
