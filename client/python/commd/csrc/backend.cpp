/* backend.cpp - torch.distributed's backend "commd": from c10d's calls to the library's.
 *
 * Each call checks its tensors, becomes a Plan (work.h) and is executed: on the caller's thread
 * when it is blocking, else on the library's. c10d has released the GIL before any of this.
 *
 * Lists: the library gathers into and scatters from one piece of memory. Lists of tensors that
 * are chunks of one tensor are used as they lie; others go through a buffer of our own.
 *
 * Memory that overlaps is allowed by c10d in more ways than by the library, which knows "in
 * place" only: other overlaps are resolved by copying the input first.
 *
 * The contents of AVG, of wrong sizes between ranks and of the operations' order are the
 * library's business; its errors come out as DistBackendError with the library's text.
 */
#include "backend.h"
#include "python.h"
#include "tensors.h"

#include <cstring>
#include <type_traits>

#include <c10/util/Exception.h>

namespace commd {

namespace {

[[noreturn]] void not_yet(const char *op)
{
    TORCH_CHECK_NOT_IMPLEMENTED(
        false, "commd: ", op,
        " is not implemented yet; supported are: all_reduce, broadcast, all_gather, "
        "all_gather_into_tensor, reduce_scatter, reduce_scatter_tensor, barrier");
}

/* Older torch versions have no asyncOp in some options: then every call is asynchronous, and
 * dist.* waits for it. */
template <class Opts, class = void> struct Sync {
    static bool of(const Opts &)
    {
        return false;
    }
};
template <class Opts> struct Sync<Opts, std::void_t<decltype(std::declval<Opts>().asyncOp)>> {
    static bool of(const Opts &opts)
    {
        return !opts.asyncOp;
    }
};
template <class Opts> bool is_sync(const Opts &opts)
{
    return Sync<Opts>::of(opts);
}

Plan plan_for(const char *name, const char *title, c10d::OpType type)
{
    Plan plan{};

    plan.name = name;
    plan.title = title;
    plan.type = type;
    return plan;
}

commd_op op_for(commd_coll coll, Elements elements, int64_t timeout_ms)
{
    commd_op op{};

    op.size = sizeof(op);
    op.coll = coll;
    op.dtype = elements.dtype;
    op.count = elements.count;
    op.timeout_ms = timeout_ms;
    return op;
}

/* Member @rank's piece of @whole, which holds one for each of @size ranks. */
const void *piece_of(const at::Tensor &whole, int rank, int size)
{
    return static_cast<const char *>(whole.const_data_ptr()) + whole.nbytes() / size * rank;
}

at::Tensor buffer_like(const at::Tensor &tensor, int n)
{
    return at::empty({tensor.numel() * n}, tensor.options().requires_grad(false));
}

} // namespace

ProcessGroupCommd::ProcessGroupCommd(const GroupSpec &spec)
    : Backend(spec.rank, spec.size), group_(Group::join(spec)), timeout_(spec.timeout),
      id_(spec.id), ranks_(spec.ranks)
{
}

ProcessGroupCommd::~ProcessGroupCommd()
{
    GilRelease no_gil;

    group_->close();
}

c10::intrusive_ptr<c10d::Backend::Options> ProcessGroupCommd::getBackendOptions()
{
    auto options = c10::make_intrusive<Options>("commd", timeout_);

#if COMMD_TORCH_SINCE(2, 9)
    options->group_name = id_;
    options->global_ranks_in_group.assign(ranks_.begin(), ranks_.end());
#endif
    return options;
}

void ProcessGroupCommd::setTimeout(std::chrono::milliseconds timeout)
{
    group_->set_timeout(timeout);
    timeout_ = timeout;
}

void ProcessGroupCommd::setSequenceNumberForGroup()
{
    /* Nothing to agree on: all members count from 0 when the group is made. */
}

uint64_t ProcessGroupCommd::getSequenceNumberForGroup()
{
    return group_->sequence();
}

#if COMMD_TORCH_SINCE(2, 9)
c10d::ErrorType ProcessGroupCommd::getError()
{
    return group_->broken() ? c10d::ErrorType::REMOTE_ERROR : c10d::ErrorType::SUCCESS;
}
#endif

void ProcessGroupCommd::shutdown()
{
    group_->close();
}

void ProcessGroupCommd::abort()
{
    group_->abort("torch.distributed abort()");
}

WorkPtr ProcessGroupCommd::execute(Plan plan, bool sync)
{
    free_retired_works();
    auto work = c10::make_intrusive<WorkCommd>(group_, rank_, std::move(plan));

    if (sync)
        work->run();
    else
        work->start();
    return work;
}

void ProcessGroupCommd::add_all_reduce(Plan &plan, const at::Tensor &tensor, int redop,
                                       int64_t timeout_ms)
{
    check_tensor(plan.name, tensor);
    commd_op op = op_for(COMMD_ALL_REDUCE, elements_to_reduce(plan.name, tensor, redop),
                         timeout_ms);

    op.redop = redop;
    op.recv = tensor.data_ptr();
    op.send = op.recv;
    plan.ops.push_back(op);
    plan.inputs.push_back(tensor);
    plan.outputs.push_back(tensor);
}

WorkPtr ProcessGroupCommd::allreduce(Tensors &tensors, const c10d::AllreduceOptions &opts)
{
    Plan plan = plan_for("all_reduce", "commd:all_reduce", c10d::OpType::ALLREDUCE);
    const at::Tensor &tensor = only_tensor(plan.name, tensors);

    add_all_reduce(plan, tensor, to_redop(plan.name, opts.reduceOp), to_timeout_ms(opts.timeout));
    return execute(std::move(plan), is_sync(opts));
}

WorkPtr ProcessGroupCommd::allreduce_coalesced(Tensors &tensors,
                                               const c10d::AllreduceCoalescedOptions &opts)
{
    Plan plan = plan_for("all_reduce_coalesced", "commd:all_reduce",
                         c10d::OpType::ALLREDUCE_COALESCED);
    int redop = to_redop(plan.name, opts.reduceOp);

    for (const at::Tensor &tensor : tensors)
        add_all_reduce(plan, tensor, redop, to_timeout_ms(opts.timeout));
    return execute(std::move(plan), is_sync(opts));
}

WorkPtr ProcessGroupCommd::broadcast(Tensors &tensors, const c10d::BroadcastOptions &opts)
{
    Plan plan = plan_for("broadcast", "commd:broadcast", c10d::OpType::BROADCAST);
    const at::Tensor &tensor = only_tensor(plan.name, tensors);

    TORCH_CHECK(opts.rootRank >= 0 && opts.rootRank < size_, "commd: broadcast from rank ",
                opts.rootRank, " of a group of ", size_);
    commd_op op = op_for(COMMD_BROADCAST, elements_to_move(tensor), to_timeout_ms(opts.timeout));
    op.root = static_cast<int>(opts.rootRank);
    op.recv = tensor.data_ptr();
    plan.ops.push_back(op);
    plan.inputs.push_back(tensor);
    plan.outputs.push_back(tensor);
    return execute(std::move(plan), is_sync(opts));
}

/* Does not add @output to the plan's outputs: it may be a buffer of ours. */
void ProcessGroupCommd::add_all_gather(Plan &plan, const at::Tensor &output, at::Tensor input,
                                       int64_t timeout_ms)
{
    if (overlap(output, input) && input.const_data_ptr() != piece_of(output, rank_, size_)) {
        input = input.clone();
        plan.staging.push_back(input);
    }
    commd_op op = op_for(COMMD_ALL_GATHER, elements_to_move(input), timeout_ms);
    op.send = input.const_data_ptr();
    op.recv = output.data_ptr();
    plan.ops.push_back(op);
}

void ProcessGroupCommd::add_all_gather_list(Plan &plan, const Tensors &outputs,
                                            const at::Tensor &input, int64_t timeout_ms)
{
    TORCH_CHECK(outputs.size() == static_cast<size_t>(size_), "commd: ", plan.name, ": ",
                outputs.size(), " output tensors for a group of ", size_);
    check_tensor(plan.name, input);
    for (const at::Tensor &output : outputs)
        check_same(plan.name, "an output", output, input);
    plan.inputs.push_back(input);
    plan.outputs.insert(plan.outputs.end(), outputs.begin(), outputs.end());

    bool in_place = input.const_data_ptr() == outputs[rank_].const_data_ptr();
    bool overlaps = false;
    for (const at::Tensor &output : outputs)
        overlaps = overlaps || overlap(output, input);
    if (adjacent(outputs) && (in_place || !overlaps)) {
        commd_op op = op_for(COMMD_ALL_GATHER, elements_to_move(input), timeout_ms);
        op.send = input.const_data_ptr();
        op.recv = outputs[0].data_ptr();
        plan.ops.push_back(op);
        return;
    }
    at::Tensor flat = buffer_like(input, size_);
    plan.staging.push_back(flat);
    add_all_gather(plan, flat, input, timeout_ms);
    for (int i = 0; i < size_; i++)
        plan.copies.push_back({outputs[i].data_ptr(), piece_of(flat, i, size_), input.nbytes()});
}

WorkPtr ProcessGroupCommd::allgather(TensorLists &outputs, Tensors &inputs,
                                     const c10d::AllgatherOptions &opts)
{
    Plan plan = plan_for("all_gather", "commd:all_gather", c10d::OpType::ALLGATHER);
    const at::Tensor &input = only_tensor(plan.name, inputs);

    TORCH_CHECK(outputs.size() == 1, "commd: all_gather takes one output list, got ",
                outputs.size());
    add_all_gather_list(plan, outputs[0], input, to_timeout_ms(opts.timeout));
    return execute(std::move(plan), is_sync(opts));
}

WorkPtr ProcessGroupCommd::_allgather_base(at::Tensor &output, at::Tensor &input,
                                           const c10d::AllgatherOptions &opts)
{
    Plan plan = plan_for("all_gather_into_tensor", "commd:_all_gather_base",
                         c10d::OpType::_ALLGATHER_BASE);

    check_multiple(plan.name, "the output", output, input, size_);
    plan.inputs.push_back(input);
    plan.outputs.push_back(output);
    add_all_gather(plan, output, input, to_timeout_ms(opts.timeout));
    return execute(std::move(plan), is_sync(opts));
}

/* outputs[rank][i] receives @rank's inputs[i]. */
WorkPtr ProcessGroupCommd::allgather_coalesced(TensorLists &outputs, Tensors &inputs,
                                               const c10d::AllgatherOptions &opts)
{
    Plan plan = plan_for("all_gather_coalesced", "commd:all_gather",
                         c10d::OpType::ALLGATHER_COALESCED);

    TORCH_CHECK(outputs.size() == static_cast<size_t>(size_), "commd: ", plan.name, ": ",
                outputs.size(), " output lists for a group of ", size_);
    for (const Tensors &list : outputs) {
        TORCH_CHECK(list.size() == inputs.size(), "commd: ", plan.name, ": ", list.size(),
                    " outputs of a rank for ", inputs.size(), " inputs");
    }
    for (size_t i = 0; i < inputs.size(); i++) {
        Tensors pieces;
        for (const Tensors &list : outputs)
            pieces.push_back(list[i]);
        add_all_gather_list(plan, pieces, inputs[i], to_timeout_ms(opts.timeout));
    }
    /* The result has the caller's order. */
    plan.outputs.clear();
    for (const Tensors &list : outputs)
        plan.outputs.insert(plan.outputs.end(), list.begin(), list.end());
    plan.nested = inputs.size();
    return execute(std::move(plan), is_sync(opts));
}

WorkPtr ProcessGroupCommd::allgather_into_tensor_coalesced(Tensors &outputs, Tensors &inputs,
                                                           const c10d::AllgatherOptions &opts)
{
    Plan plan = plan_for("all_gather_into_tensor_coalesced", "commd:all_gather",
                         c10d::OpType::COALESCED);

    TORCH_CHECK(outputs.size() == inputs.size(), "commd: ", plan.name, ": ", outputs.size(),
                " outputs for ", inputs.size(), " inputs");
    for (size_t i = 0; i < inputs.size(); i++) {
        check_multiple(plan.name, "an output", outputs[i], inputs[i], size_);
        plan.inputs.push_back(inputs[i]);
        plan.outputs.push_back(outputs[i]);
        add_all_gather(plan, outputs[i], inputs[i], to_timeout_ms(opts.timeout));
    }
    return execute(std::move(plan), is_sync(opts));
}

/* Does not add @input to the plan's inputs: it may be a buffer of ours. */
void ProcessGroupCommd::add_reduce_scatter(Plan &plan, const at::Tensor &output, at::Tensor input,
                                           int redop, int64_t timeout_ms)
{
    if (overlap(output, input) && output.const_data_ptr() != piece_of(input, rank_, size_)) {
        input = input.clone();
        plan.staging.push_back(input);
    }
    commd_op op = op_for(COMMD_REDUCE_SCATTER, elements_to_reduce(plan.name, output, redop),
                         timeout_ms);
    op.redop = redop;
    op.send = input.const_data_ptr();
    op.recv = output.data_ptr();
    plan.ops.push_back(op);
    plan.outputs.push_back(output);
}

WorkPtr ProcessGroupCommd::reduce_scatter(Tensors &outputs, TensorLists &inputs,
                                          const c10d::ReduceScatterOptions &opts)
{
    Plan plan = plan_for("reduce_scatter", "commd:reduce_scatter", c10d::OpType::REDUCE_SCATTER);
    const at::Tensor &output = only_tensor(plan.name, outputs);
    int redop = to_redop(plan.name, opts.reduceOp);

    TORCH_CHECK(inputs.size() == 1 && inputs[0].size() == static_cast<size_t>(size_),
                "commd: reduce_scatter takes one input tensor for each of the ", size_, " ranks");
    for (const at::Tensor &input : inputs[0])
        check_same(plan.name, "an input", input, output);
    plan.inputs = inputs[0];
    elements_to_reduce(plan.name, output, redop); /* before copying */

    bool overlaps = false;
    for (const at::Tensor &input : inputs[0])
        overlaps = overlaps || overlap(output, input);
    if (adjacent(inputs[0]) && !overlaps) {
        commd_op op = op_for(COMMD_REDUCE_SCATTER, elements_to_reduce(plan.name, output, redop),
                             to_timeout_ms(opts.timeout));
        op.redop = redop;
        op.send = inputs[0][0].const_data_ptr();
        op.recv = output.data_ptr();
        plan.ops.push_back(op);
        plan.outputs.push_back(output);
        return execute(std::move(plan), is_sync(opts));
    }
    at::Tensor flat = buffer_like(output, size_);
    for (int i = 0; i < size_ && output.nbytes(); i++) {
        std::memcpy(const_cast<void *>(piece_of(flat, i, size_)), inputs[0][i].const_data_ptr(),
                    output.nbytes());
    }
    plan.staging.push_back(flat);
    add_reduce_scatter(plan, output, flat, redop, to_timeout_ms(opts.timeout));
    return execute(std::move(plan), is_sync(opts));
}

WorkPtr ProcessGroupCommd::_reduce_scatter_base(at::Tensor &output, at::Tensor &input,
                                                const c10d::ReduceScatterOptions &opts)
{
    Plan plan = plan_for("reduce_scatter_tensor", "commd:_reduce_scatter_base",
                         c10d::OpType::_REDUCE_SCATTER_BASE);
    int redop = to_redop(plan.name, opts.reduceOp);

    check_multiple(plan.name, "the input", input, output, size_);
    plan.inputs.push_back(input);
    add_reduce_scatter(plan, output, input, redop, to_timeout_ms(opts.timeout));
    return execute(std::move(plan), is_sync(opts));
}

WorkPtr ProcessGroupCommd::reduce_scatter_tensor_coalesced(Tensors &outputs, Tensors &inputs,
                                                           const c10d::ReduceScatterOptions &opts)
{
    Plan plan = plan_for("reduce_scatter_tensor_coalesced", "commd:reduce_scatter",
                         c10d::OpType::COALESCED);
    int redop = to_redop(plan.name, opts.reduceOp);

    TORCH_CHECK(outputs.size() == inputs.size(), "commd: ", plan.name, ": ", outputs.size(),
                " outputs for ", inputs.size(), " inputs");
    for (size_t i = 0; i < inputs.size(); i++) {
        check_multiple(plan.name, "an input", inputs[i], outputs[i], size_);
        plan.inputs.push_back(inputs[i]);
        add_reduce_scatter(plan, outputs[i], inputs[i], redop, to_timeout_ms(opts.timeout));
    }
    return execute(std::move(plan), is_sync(opts));
}

WorkPtr ProcessGroupCommd::barrier(const c10d::BarrierOptions &opts)
{
    Plan plan = plan_for("barrier", "commd:barrier", c10d::OpType::BARRIER);

    plan.ops.push_back(op_for(COMMD_BARRIER, {COMMD_U8, 0}, to_timeout_ms(opts.timeout)));
    return execute(std::move(plan), is_sync(opts));
}

WorkPtr ProcessGroupCommd::allreduce_sparse(Tensors &, const c10d::AllreduceOptions &)
{
    not_yet("all_reduce of sparse tensors");
}

WorkPtr ProcessGroupCommd::reduce(Tensors &, const c10d::ReduceOptions &)
{
    not_yet("reduce");
}

WorkPtr ProcessGroupCommd::gather(TensorLists &, Tensors &, const c10d::GatherOptions &)
{
    not_yet("gather");
}

WorkPtr ProcessGroupCommd::scatter(Tensors &, TensorLists &, const c10d::ScatterOptions &)
{
    not_yet("scatter");
}

WorkPtr ProcessGroupCommd::alltoall(Tensors &, Tensors &, const c10d::AllToAllOptions &)
{
    not_yet("all_to_all");
}

WorkPtr ProcessGroupCommd::alltoall_base(at::Tensor &, at::Tensor &, std::vector<int64_t> &,
                                         std::vector<int64_t> &, const c10d::AllToAllOptions &)
{
    not_yet("all_to_all_single");
}

WorkPtr ProcessGroupCommd::send(Tensors &, int, int)
{
    not_yet("send");
}

WorkPtr ProcessGroupCommd::recv(Tensors &, int, int)
{
    not_yet("recv");
}

WorkPtr ProcessGroupCommd::recvAnysource(Tensors &, int)
{
    not_yet("recv from any source");
}

void ProcessGroupCommd::monitoredBarrier(const c10d::BarrierOptions &, bool)
{
    not_yet("monitored_barrier");
}

} // namespace commd
