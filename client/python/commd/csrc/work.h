/* work.h - a collective in flight, as torch sees it. See work.cpp for the model. */
#pragma once

#include <atomic>
#include <memory>
#include <vector>

#include <commd/commd.h>
#include <torch/csrc/distributed/c10d/Work.hpp>

#include "group.h"

namespace commd {

/* One c10d call: the library operations that it consists of, in the order in which they are
 * issued, and what must stay alive until they are done. */
struct Plan {
    /* After success: a received piece to where the caller wants it. */
    struct Copy {
        void *to;
        const void *from;
        size_t bytes;
    };

    const char *name;  /* "all_reduce", in messages */
    const char *title; /* "commd:all_reduce", in the profiler */
    c10d::OpType type;
    std::vector<commd_op> ops;
    std::vector<at::Tensor> inputs;
    std::vector<at::Tensor> outputs;
    size_t nested = 0;               /* > 0: the result is lists of that many outputs each */
    std::vector<at::Tensor> staging; /* our own buffers */
    std::vector<Copy> copies;
};

class WorkCommd : public c10d::Work {
 public:
    WorkCommd(std::shared_ptr<Group> group, int rank, Plan plan);

    /* Runs all operations on the calling thread; throws what fails. */
    void run();
    /* Starts all operations; they complete on the library's thread. */
    void start();

    bool wait(std::chrono::milliseconds timeout = kNoTimeout) override;
    std::vector<at::Tensor> result() override;
    c10::intrusive_ptr<c10::ivalue::Future> getFuture() override;
    uint64_t getSequencenumber() const override;
    void abort() override;

 private:
    static void on_done(void *arg, const commd_error *error);
    void part_done(const commd_error *error);
    void complete();
    void copy_out();
    c10::IValue value() const;
    void settle(c10::ivalue::Future &future);

    const std::shared_ptr<Group> group_;
    Plan plan_;
    uint64_t sequence_ = 0; /* of this call in its group */
    std::atomic<size_t> parts_left_{0};
    std::atomic<bool> done_{false};
    /* Under Work's mutex_: */
    std::exception_ptr error_;
    bool settled_ = false; /* the outcome is known: new futures are born complete */
    c10::intrusive_ptr<c10::ivalue::Future> future_;
};

/* Frees what completions could not: see on_done(). */
void free_retired_works();

} // namespace commd
