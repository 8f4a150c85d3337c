/* plan.h - one c10d call on its way into the library. See plan.cpp for the model. */
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include <ATen/ATen.h>
#include <c10/util/SmallVector.h>
#include <commd/commd.h>
#include <torch/csrc/distributed/c10d/Work.hpp>

#include "tensors.h"

namespace commd
{

struct Plan {
    Plan(const char *name, const char *title, c10d::OpType type, std::chrono::milliseconds timeout);
    Plan(Plan &&) = default;
    Plan &operator=(Plan &&) = default;

    /* The memory to read @tensor's elements from, or to put them into, in the order of its
     * indices: its own, or a staging buffer of ours that is filled now or copied back later. */
    at::Tensor readable(const at::Tensor &tensor);
    at::Tensor writable(const at::Tensor &tensor);
    at::Tensor in_place(const at::Tensor &tensor); /* both */
    /* A copy, for inputs whose memory the operation writes while it still needs them. */
    at::Tensor copied(const at::Tensor &tensor);

    commd_op &add(commd_coll coll, Elements elements);
    /* The blocks of an operation, one tensor per rank: as they lie if they are adjacent. Tensors
     * come from readable() and writable(). */
    void send_blocks(commd_op &op, const std::vector<at::Tensor> &blocks);
    void recv_blocks(commd_op &op, const std::vector<at::Tensor> &blocks);
    /* Elements of each block, for the forms ending in _v. */
    const size_t *keep(std::vector<size_t> counts);

    /* After success: what was received in buffers of ours goes where the caller wants it. */
    void copy_back();
    bool unpacks() const
    {
        return !copies_.empty();
    }
    /* The operations of @part come behind its own. */
    void absorb(Plan &&part);
    /* Its tensors are used by @stream, too. */
    void record(const c10::Stream &stream) const;
    /* Its tensors are not needed any more. */
    void release();

    const char *name;  /* "all_reduce", in messages */
    const char *title; /* "commd:all_reduce", in the profiler */
    c10d::OpType type;
    int64_t timeout_ms;   /* as the library counts: 0 the group's, -1 none */
    bool numbered = true; /* counts in the group's sequence: not point to point */
    size_t nested = 0;    /* > 0: the result is lists of that many outputs each */
    /* Where all tensors are; of an operation without one: unset, the host. */
    std::optional<at::Device> device;
    c10::SmallVector<commd_op, 1> ops;
    std::vector<at::Tensor> inputs;
    std::vector<at::Tensor> outputs;
    std::vector<at::Tensor> staging; /* our own buffers */

  private:
    void meet(const at::Tensor &tensor);

    struct Copy {
        at::Tensor to;
        at::Tensor from;
    };
    std::vector<Copy> copies_;
    /* What commd_op points to. Moving a Plan leaves the arrays where they are. */
    std::vector<std::vector<size_t>> counts_;
    std::vector<std::vector<void *>> blocks_;
};

/* Where the outputs of a call lie, to find the inputs that they would overwrite. */
class Ranges
{
  public:
    explicit Ranges(const std::vector<at::Tensor> &tensors);
    bool touch(const at::Tensor &tensor) const;

  private:
    struct Range {
        const char *begin, *end;
    };
    std::vector<Range> sorted_; /* apart from each other, ascending */
};

} // namespace commd
