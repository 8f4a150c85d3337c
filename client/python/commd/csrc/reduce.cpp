/* reduce.cpp - operations that compute: all_reduce, reduce, reduce_scatter and their forms for
 * lists, single tensors and coalesced calls. */
#include "backend.h"

namespace commd
{

void ProcessGroupCommd::add_all_reduce(Plan &plan, const at::Tensor &tensor, const Redop &redop)
{
    check_tensor(plan.name, tensor);
    Elements elements = elements_to_reduce(plan.name, tensor, redop);
    at::Tensor memory = plan.in_place(tensor);
    commd_op &op = plan.add(COMMD_ALL_REDUCE, elements);

    op.redop = redop.op;
    op.scale = redop.scale;
    op.recv = memory.data_ptr();
    op.send = op.recv;
    plan.inputs.push_back(tensor);
    plan.outputs.push_back(tensor);
}

WorkPtr ProcessGroupCommd::allreduce(Tensors &tensors, const c10d::AllreduceOptions &opts)
{
    Plan plan("all_reduce", "commd:all_reduce", c10d::OpType::ALLREDUCE, opts.timeout);

    if (tensors.size() == 1 && tensors[0].is_sparse())
        return allreduce_sparse(tensors, opts);
    add_all_reduce(plan, only_tensor(plan.name, tensors), to_redop(plan.name, opts.reduceOp));
    return execute(std::move(plan), is_sync(opts));
}

WorkPtr ProcessGroupCommd::allreduce_coalesced(Tensors &tensors,
                                               const c10d::AllreduceCoalescedOptions &opts)
{
    Plan plan("all_reduce_coalesced", "commd:all_reduce", c10d::OpType::ALLREDUCE_COALESCED,
              opts.timeout);
    Redop redop = to_redop(plan.name, opts.reduceOp);

    for (const at::Tensor &tensor : tensors)
        add_all_reduce(plan, tensor, redop);
    return execute(std::move(plan), is_sync(opts));
}

WorkPtr ProcessGroupCommd::reduce(Tensors &tensors, const c10d::ReduceOptions &opts)
{
    Plan plan("reduce", "commd:reduce", c10d::OpType::REDUCE, opts.timeout);
    const at::Tensor &tensor = only_tensor(plan.name, tensors);
    Redop redop = to_redop(plan.name, opts.reduceOp);

    check_root(plan.name, opts.rootRank, size_);
    Elements elements = elements_to_reduce(plan.name, tensor, redop);
    bool root = opts.rootRank == rank_;
    at::Tensor memory = root ? plan.in_place(tensor) : plan.readable(tensor);
    commd_op &op = plan.add(COMMD_REDUCE, elements);
    op.redop = redop.op;
    op.scale = redop.scale;
    op.root = static_cast<int>(opts.rootRank);
    op.send = memory.const_data_ptr();
    op.recv = root ? memory.data_ptr() : nullptr;
    plan.inputs.push_back(tensor);
    plan.outputs.push_back(tensor);
    return execute(std::move(plan), is_sync(opts));
}

void ProcessGroupCommd::add_reduce_scatter(Plan &plan, const at::Tensor &output,
                                           const at::Tensor &input, const Redop &redop)
{
    check_multiple(plan.name, "the input", input, output, size_);
    Elements elements = elements_to_reduce(plan.name, output, redop);
    at::Tensor from = plan.readable(input), to = plan.writable(output);
    const char *own = static_cast<const char *>(from.const_data_ptr()) + to.nbytes() * rank_;

    if (to.const_data_ptr() != own && Ranges({to}).touch(from))
        from = plan.copied(from);
    commd_op &op = plan.add(COMMD_REDUCE_SCATTER, elements);
    op.redop = redop.op;
    op.scale = redop.scale;
    op.send = from.const_data_ptr();
    op.recv = to.data_ptr();
    plan.inputs.push_back(input);
    plan.outputs.push_back(output);
}

/* The inputs may differ in size: all ranks have the same list of sizes. */
WorkPtr ProcessGroupCommd::reduce_scatter(Tensors &outputs, TensorLists &inputs,
                                          const c10d::ReduceScatterOptions &opts)
{
    Plan plan("reduce_scatter", "commd:reduce_scatter", c10d::OpType::REDUCE_SCATTER, opts.timeout);
    const at::Tensor &output = only_tensor(plan.name, outputs);
    const Tensors &list = only_list(plan.name, "input", inputs, size_);
    Redop redop = to_redop(plan.name, opts.reduceOp);
    std::vector<size_t> counts;
    Tensors from;
    bool even = true;

    for (const at::Tensor &input : list)
        check_dtype(plan.name, "an input", input, output);
    check_same(plan.name, "the output", output, list[rank_]);
    Elements elements = elements_to_reduce(plan.name, output, redop);
    at::Tensor to = plan.writable(output);
    Ranges written({to});
    for (int i = 0; i < size_; i++) {
        at::Tensor input = plan.readable(list[i]);
        bool in_place = i == rank_ && input.const_data_ptr() == to.const_data_ptr();
        from.push_back(!in_place && written.touch(input) ? plan.copied(input) : input);
        counts.push_back(elements_to_reduce(plan.name, input, redop).count);
        even = even && counts[i] == counts[0];
    }
    commd_op &op = plan.add(even ? COMMD_REDUCE_SCATTER : COMMD_REDUCE_SCATTER_V, elements);
    op.redop = redop.op;
    op.scale = redop.scale;
    op.recv = to.data_ptr();
    plan.send_blocks(op, from);
    if (!even)
        op.send_counts = plan.keep(std::move(counts));
    plan.inputs = list;
    plan.outputs.push_back(output);
    return execute(std::move(plan), is_sync(opts));
}

WorkPtr ProcessGroupCommd::_reduce_scatter_base(at::Tensor &output, at::Tensor &input,
                                                const c10d::ReduceScatterOptions &opts)
{
    Plan plan("reduce_scatter_tensor", "commd:_reduce_scatter_base",
              c10d::OpType::_REDUCE_SCATTER_BASE, opts.timeout);

    add_reduce_scatter(plan, output, input, to_redop(plan.name, opts.reduceOp));
    return execute(std::move(plan), is_sync(opts));
}

WorkPtr ProcessGroupCommd::reduce_scatter_tensor_coalesced(Tensors &outputs, Tensors &inputs,
                                                           const c10d::ReduceScatterOptions &opts)
{
    Plan plan("reduce_scatter_tensor_coalesced", "commd:reduce_scatter", c10d::OpType::COALESCED,
              opts.timeout);
    Redop redop = to_redop(plan.name, opts.reduceOp);

    TORCH_CHECK(outputs.size() == inputs.size(), "commd: ", plan.name, ": ", outputs.size(),
                " outputs for ", inputs.size(), " inputs");
    for (size_t i = 0; i < inputs.size(); i++)
        add_reduce_scatter(plan, outputs[i], inputs[i], redop);
    return execute(std::move(plan), is_sync(opts));
}

} // namespace commd
