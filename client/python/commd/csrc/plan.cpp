/* plan.cpp - one c10d call on its way into the library: the library operations that it consists
 * of, in the order in which they are issued, and what must stay alive until they are done.
 *
 * Memory. The library takes contiguous memory, or a list of contiguous blocks. c10d allows more:
 * tensors with strides, which are packed into a buffer of ours in the order of their indices (so
 * ranks need not agree on strides) and unpacked afterwards; and inputs that overlap outputs in
 * ways that the library does not call "in place", which are copied first.
 *
 * copy_back() runs on the library's thread when the call is asynchronous, and not on a GPU (there:
 * device_work.cpp). It goes below autograd:
 * the version counters and the history of a tensor are the business of the thread that asked.
 */
#include "plan.h"

#include <algorithm>
#include <iterator>

#include <ATen/MemoryOverlap.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include "group.h"

namespace commd
{

namespace
{

bool lies_ready(const at::Tensor &tensor)
{
    return tensor.is_contiguous() && !tensor.is_conj() && !tensor.is_neg();
}

const char *begin_of(const at::Tensor &tensor)
{
    return static_cast<const char *>(tensor.const_data_ptr());
}

} // namespace

Plan::Plan(const char *name, const char *title, c10d::OpType type,
           std::chrono::milliseconds timeout)
    : name(name), title(title), type(type), timeout_ms(to_timeout_ms(name, timeout))
{
}

/* Every tensor of a call comes by here. */
void Plan::meet(const at::Tensor &tensor)
{
    if (!device)
        device = tensor.device();
    TORCH_CHECK(*device == tensor.device(), "commd: ", name, ": a tensor is on ", tensor.device(),
                ", but another one on ", *device);
}

at::Tensor Plan::copied(const at::Tensor &tensor)
{
    at::AutoDispatchBelowADInplaceOrView guard;
    at::Tensor copy = at::empty(tensor.sizes(), tensor.options().memory_format(std::nullopt));

    copy.copy_(tensor);
    staging.push_back(copy);
    return copy;
}

at::Tensor Plan::readable(const at::Tensor &tensor)
{
    meet(tensor);
    return lies_ready(tensor) ? tensor : copied(tensor);
}

at::Tensor Plan::writable(const at::Tensor &tensor)
{
    meet(tensor);
    if (lies_ready(tensor))
        return tensor;
    at::assert_no_internal_overlap(tensor); /* an expanded tensor cannot be written */
    at::AutoDispatchBelowADInplaceOrView guard;
    at::Tensor buffer = at::empty(tensor.sizes(), tensor.options().memory_format(std::nullopt));
    staging.push_back(buffer);
    copies_.push_back({tensor, buffer});
    return buffer;
}

at::Tensor Plan::in_place(const at::Tensor &tensor)
{
    meet(tensor);
    if (lies_ready(tensor))
        return tensor;
    at::assert_no_internal_overlap(tensor);
    at::Tensor buffer = copied(tensor);
    copies_.push_back({tensor, buffer});
    return buffer;
}

/* Copied: the compiler clears a new one by an instruction that takes as long as a small operation.
 * It must not see that these are zeros. */
commd_op op_nothing;

commd_op &Plan::add(commd_coll coll, Elements elements)
{
    ops.push_back(op_nothing);
    commd_op &op = ops.back();

    op.size = sizeof(op);
    op.coll = coll;
    op.dtype = elements.dtype;
    op.count = elements.count;
    op.timeout_ms = timeout_ms;
    op.memory = COMMD_MEMORY_HOST;
    return op;
}

const size_t *Plan::keep(std::vector<size_t> counts)
{
    counts_.push_back(std::move(counts));
    return counts_.back().data();
}

static bool adjacent(const std::vector<at::Tensor> &blocks)
{
    const char *next = nullptr;

    for (const at::Tensor &block : blocks) {
        if (block.numel() == 0)
            continue; /* lies anywhere */
        if (next && begin_of(block) != next)
            return false;
        next = begin_of(block) + block.nbytes();
    }
    return true;
}

/* Of adjacent blocks: where they begin. */
static void *first_of(const std::vector<at::Tensor> &blocks)
{
    for (const at::Tensor &block : blocks) {
        if (block.numel())
            return const_cast<char *>(begin_of(block));
    }
    return nullptr;
}

static std::vector<void *> addresses(const std::vector<at::Tensor> &blocks)
{
    std::vector<void *> list;

    list.reserve(blocks.size());
    for (const at::Tensor &block : blocks)
        list.push_back(const_cast<char *>(begin_of(block)));
    return list;
}

void Plan::send_blocks(commd_op &op, const std::vector<at::Tensor> &blocks)
{
    if (adjacent(blocks)) {
        op.send = first_of(blocks);
        return;
    }
    blocks_.push_back(addresses(blocks));
    op.send_blocks = blocks_.back().data();
}

void Plan::recv_blocks(commd_op &op, const std::vector<at::Tensor> &blocks)
{
    if (adjacent(blocks)) {
        op.recv = first_of(blocks);
        return;
    }
    blocks_.push_back(addresses(blocks));
    op.recv_blocks = blocks_.back().data();
}

void Plan::copy_back()
{
    if (!copies_.empty()) {
        at::AutoDispatchBelowADInplaceOrView guard;
        for (const Copy &copy : copies_)
            copy.to.copy_(copy.from);
    }
    /* The caller's tensors stay until the work is freed: their last reference may need the GIL. */
}

template <class To, class From> static void append(To &to, From &&from)
{
    to.insert(to.end(), std::make_move_iterator(from.begin()), std::make_move_iterator(from.end()));
}

void Plan::absorb(Plan &&part)
{
    append(ops, part.ops);
    append(inputs, part.inputs);
    append(outputs, part.outputs);
    append(staging, part.staging);
    append(copies_, part.copies_);
    append(counts_, part.counts_);
    append(blocks_, part.blocks_);
}

void Plan::record(const c10::Stream &stream) const
{
    c10::impl::VirtualGuardImpl impl(stream.device_type());

    for (const auto *list : {&inputs, &outputs, &staging}) {
        for (const at::Tensor &tensor : *list)
            impl.recordDataPtrOnStream(tensor.storage().data_ptr(), stream);
    }
}

void Plan::release()
{
    inputs.clear();
    outputs.clear();
    staging.clear();
    copies_.clear();
}

Ranges::Ranges(const std::vector<at::Tensor> &tensors)
{
    std::vector<Range> all;

    for (const at::Tensor &tensor : tensors) {
        if (tensor.nbytes())
            all.push_back({begin_of(tensor), begin_of(tensor) + tensor.nbytes()});
    }
    std::sort(all.begin(), all.end(),
              [](const Range &a, const Range &b) { return a.begin < b.begin; });
    for (const Range &range : all) {
        if (!sorted_.empty() && range.begin <= sorted_.back().end)
            sorted_.back().end = std::max(sorted_.back().end, range.end);
        else
            sorted_.push_back(range);
    }
}

bool Ranges::touch(const at::Tensor &tensor) const
{
    const char *begin = begin_of(tensor), *end = begin + tensor.nbytes();

    if (begin == end)
        return false;
    auto after = std::upper_bound(sorted_.begin(), sorted_.end(), begin,
                                  [](const char *p, const Range &r) { return p < r.end; });
    return after != sorted_.end() && after->begin < end;
}

} // namespace commd
