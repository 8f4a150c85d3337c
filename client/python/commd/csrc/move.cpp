/* move.cpp - operations that move data: broadcast, gather, scatter, all_gather, all_to_all and
 * their forms for lists, single tensors and coalesced calls; and the barrier.
 *
 * Lists are used as they lie: the library takes an address for each block. */
#include "backend.h"

namespace commd
{

WorkPtr ProcessGroupCommd::broadcast(Tensors &tensors, const c10d::BroadcastOptions &opts)
{
    Plan plan("broadcast", "commd:broadcast", c10d::OpType::BROADCAST, opts.timeout);
    const at::Tensor &tensor = only_tensor(plan.name, tensors);

    check_root(plan.name, opts.rootRank, size_);
    at::Tensor memory = opts.rootRank == rank_ ? plan.readable(tensor) : plan.writable(tensor);
    commd_op &op = plan.add(COMMD_BROADCAST, elements_to_move(tensor));
    op.root = static_cast<int>(opts.rootRank);
    op.recv = const_cast<void *>(memory.const_data_ptr());
    plan.inputs.push_back(tensor);
    plan.outputs.push_back(tensor);
    return execute(std::move(plan), is_sync(opts));
}

/* What to send of @from, if everybody's go to @to: a copy, where they would overwrite it. */
static at::Tensor apart(Plan &plan, const at::Tensor &from, const at::Tensor &to, int rank)
{
    const char *own = static_cast<const char *>(to.const_data_ptr()) + from.nbytes() * rank;

    return from.const_data_ptr() != own && Ranges({to}).touch(from) ? plan.copied(from) : from;
}

void ProcessGroupCommd::add_all_gather(Plan &plan, const at::Tensor &output,
                                       const at::Tensor &input)
{
    check_multiple(plan.name, "the output", output, input, size_);
    at::Tensor to = plan.writable(output);
    at::Tensor from = apart(plan, plan.readable(input), to, rank_);
    commd_op &op = plan.add(COMMD_ALL_GATHER, elements_to_move(input));
    op.send = from.const_data_ptr();
    op.recv = to.data_ptr();
    plan.inputs.push_back(input);
}

/* The outputs may differ in size: all ranks have the same list of sizes. Does not add to the
 * plan's outputs: their order is the caller's. */
void ProcessGroupCommd::add_all_gather_list(Plan &plan, const Tensors &outputs,
                                            const at::Tensor &input)
{
    std::vector<size_t> counts;
    Tensors to;
    bool even = true;

    for (const at::Tensor &output : outputs)
        check_dtype(plan.name, "an output", output, input);
    check_same(plan.name, "the input", input, outputs[rank_]);
    for (const at::Tensor &output : outputs) {
        to.push_back(plan.writable(output));
        counts.push_back(elements_to_move(output).count);
        even = even && counts.back() == counts[0];
    }
    at::Tensor from = plan.readable(input);
    if (from.const_data_ptr() != to[rank_].const_data_ptr() && Ranges(to).touch(from))
        from = plan.copied(from);
    commd_op &op = plan.add(even ? COMMD_ALL_GATHER : COMMD_ALL_GATHER_V, elements_to_move(input));
    op.send = from.const_data_ptr();
    plan.recv_blocks(op, to);
    if (!even)
        op.recv_counts = plan.keep(std::move(counts));
    plan.inputs.push_back(input);
}

WorkPtr ProcessGroupCommd::allgather(TensorLists &outputs, Tensors &inputs,
                                     const c10d::AllgatherOptions &opts)
{
    Plan plan("all_gather", "commd:all_gather", c10d::OpType::ALLGATHER, opts.timeout);
    const at::Tensor &input = only_tensor(plan.name, inputs);
    const Tensors &list = only_list(plan.name, "output", outputs, size_);

    add_all_gather_list(plan, list, input);
    plan.outputs = list;
    return execute(std::move(plan), is_sync(opts));
}

WorkPtr ProcessGroupCommd::_allgather_base(at::Tensor &output, at::Tensor &input,
                                           const c10d::AllgatherOptions &opts)
{
    Plan plan("all_gather_into_tensor", "commd:_all_gather_base", c10d::OpType::_ALLGATHER_BASE,
              opts.timeout);

    add_all_gather(plan, output, input);
    plan.outputs.push_back(output);
    return execute(std::move(plan), is_sync(opts));
}

/* outputs[rank][i] receives @rank's inputs[i]. */
WorkPtr ProcessGroupCommd::allgather_coalesced(TensorLists &outputs, Tensors &inputs,
                                               const c10d::AllgatherOptions &opts)
{
    Plan plan("all_gather_coalesced", "commd:all_gather", c10d::OpType::ALLGATHER_COALESCED,
              opts.timeout);

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
        check_tensor(plan.name, inputs[i]);
        add_all_gather_list(plan, pieces, inputs[i]);
    }
    for (const Tensors &list : outputs)
        plan.outputs.insert(plan.outputs.end(), list.begin(), list.end());
    plan.nested = inputs.size();
    return execute(std::move(plan), is_sync(opts));
}

WorkPtr ProcessGroupCommd::allgather_into_tensor_coalesced(Tensors &outputs, Tensors &inputs,
                                                           const c10d::AllgatherOptions &opts)
{
    Plan plan("all_gather_into_tensor_coalesced", "commd:all_gather", c10d::OpType::COALESCED,
              opts.timeout);

    TORCH_CHECK(outputs.size() == inputs.size(), "commd: ", plan.name, ": ", outputs.size(),
                " outputs for ", inputs.size(), " inputs");
    for (size_t i = 0; i < inputs.size(); i++) {
        add_all_gather(plan, outputs[i], inputs[i]);
        plan.outputs.push_back(outputs[i]);
    }
    return execute(std::move(plan), is_sync(opts));
}

WorkPtr ProcessGroupCommd::gather(TensorLists &outputs, Tensors &inputs,
                                  const c10d::GatherOptions &opts)
{
    Plan plan("gather", "commd:gather", c10d::OpType::GATHER, opts.timeout);
    const at::Tensor &input = only_tensor(plan.name, inputs);
    Tensors to;

    check_root(plan.name, opts.rootRank, size_);
    at::Tensor from = plan.readable(input);
    if (opts.rootRank == rank_) {
        const Tensors &list = only_list(plan.name, "output", outputs, size_);
        for (const at::Tensor &output : list) {
            check_same(plan.name, "an output", output, input);
            to.push_back(plan.writable(output));
        }
        if (from.const_data_ptr() != to[rank_].const_data_ptr() && Ranges(to).touch(from))
            from = plan.copied(from);
        plan.outputs = list;
    } else {
        TORCH_CHECK(outputs.empty() || outputs[0].empty(),
                    "commd: gather: outputs are given on rank ", rank_, ", but the root is rank ",
                    opts.rootRank);
    }
    commd_op &op = plan.add(COMMD_GATHER, elements_to_move(input));
    op.root = static_cast<int>(opts.rootRank);
    op.send = from.const_data_ptr();
    plan.recv_blocks(op, to);
    plan.inputs.push_back(input);
    return execute(std::move(plan), is_sync(opts));
}

WorkPtr ProcessGroupCommd::gather_single(at::Tensor &output, at::Tensor &input,
                                         const c10d::GatherOptions &opts)
{
    Plan plan("gather_single", "commd:gather", c10d::OpType::GATHER, opts.timeout);

    check_root(plan.name, opts.rootRank, size_);
    check_tensor(plan.name, input);
    at::Tensor from = plan.readable(input), to;
    if (opts.rootRank == rank_) { /* the others' output is not looked at, as torch passes any */
        check_multiple(plan.name, "the output", output, input, size_);
        to = plan.writable(output);
        from = apart(plan, from, to, rank_);
        plan.outputs.push_back(output);
    }
    commd_op &op = plan.add(COMMD_GATHER, elements_to_move(input));
    op.root = static_cast<int>(opts.rootRank);
    op.send = from.const_data_ptr();
    op.recv = to.defined() ? to.data_ptr() : nullptr;
    plan.inputs.push_back(input);
    return execute(std::move(plan), is_sync(opts));
}

WorkPtr ProcessGroupCommd::scatter(Tensors &outputs, TensorLists &inputs,
                                   const c10d::ScatterOptions &opts)
{
    Plan plan("scatter", "commd:scatter", c10d::OpType::SCATTER, opts.timeout);
    const at::Tensor &output = only_tensor(plan.name, outputs);
    Tensors from;

    check_root(plan.name, opts.rootRank, size_);
    at::Tensor to = plan.writable(output);
    if (opts.rootRank == rank_) {
        const Tensors &list = only_list(plan.name, "input", inputs, size_);
        Ranges written({to});
        for (int i = 0; i < size_; i++) {
            check_same(plan.name, "an input", list[i], output);
            at::Tensor input = plan.readable(list[i]);
            bool in_place = i == rank_ && input.const_data_ptr() == to.const_data_ptr();
            from.push_back(!in_place && written.touch(input) ? plan.copied(input) : input);
        }
        plan.inputs = list;
    } else {
        TORCH_CHECK(inputs.empty() || inputs[0].empty(),
                    "commd: scatter: inputs are given on rank ", rank_, ", but the root is rank ",
                    opts.rootRank);
    }
    commd_op &op = plan.add(COMMD_SCATTER, elements_to_move(output));
    op.root = static_cast<int>(opts.rootRank);
    op.recv = to.data_ptr();
    plan.send_blocks(op, from);
    plan.outputs.push_back(output);
    return execute(std::move(plan), is_sync(opts));
}

/* Always in the form for uneven blocks: a rank whose blocks are even cannot know whether those
 * of the others are. */
WorkPtr ProcessGroupCommd::alltoall(Tensors &outputs, Tensors &inputs,
                                    const c10d::AllToAllOptions &opts)
{
    Plan plan("all_to_all", "commd:all_to_all", c10d::OpType::ALLTOALL, opts.timeout);
    const size_t size = static_cast<size_t>(size_);
    std::vector<size_t> send_counts, recv_counts;
    Tensors from, to;

    TORCH_CHECK(outputs.size() == size && inputs.size() == size,
                "commd: all_to_all: ", inputs.size(), " inputs and ", outputs.size(),
                " outputs for a group of ", size_);
    check_tensor(plan.name, inputs[0]);
    for (const at::Tensor &output : outputs) {
        check_dtype(plan.name, "an output", output, inputs[0]);
        to.push_back(plan.writable(output));
        recv_counts.push_back(elements_to_move(output).count);
    }
    Ranges written(to);
    for (const at::Tensor &listed : inputs) {
        check_dtype(plan.name, "an input", listed, inputs[0]);
        at::Tensor input = plan.readable(listed);
        from.push_back(written.touch(input) ? plan.copied(input) : input);
        send_counts.push_back(elements_to_move(listed).count);
    }
    commd_op &op = plan.add(COMMD_ALL_TO_ALL_V, elements_to_move(inputs[0]));
    plan.send_blocks(op, from);
    plan.recv_blocks(op, to);
    op.send_counts = plan.keep(std::move(send_counts));
    op.recv_counts = plan.keep(std::move(recv_counts));
    plan.inputs = inputs;
    plan.outputs = outputs;
    return execute(std::move(plan), is_sync(opts));
}

/* Elements of each block of @tensor, which @splits divides along its first dimension. */
static std::vector<size_t> split_counts(const char *name, const char *what,
                                        const at::Tensor &tensor,
                                        const std::vector<int64_t> &splits, int size)
{
    int64_t rows = tensor.dim() ? tensor.size(0) : 1, sum = 0;
    size_t elements = elements_to_move(tensor).count, row = rows ? elements / rows : 0;
    std::vector<size_t> counts;

    TORCH_CHECK(splits.size() == static_cast<size_t>(size), "commd: ", name, ": ", splits.size(),
                " ", what, " split sizes for a group of ", size);
    for (int64_t split : splits) {
        TORCH_CHECK(split >= 0, "commd: ", name, ": an ", what, " split size is ", split);
        sum += split;
        counts.push_back(row * static_cast<size_t>(split));
    }
    TORCH_CHECK(sum == rows, "commd: ", name, ": the ", what, " split sizes add up to ", sum,
                ", but the tensor has ", rows, " rows");
    return counts;
}

/* What @splits stands for: none means even ones. */
static std::vector<int64_t> full_splits(const char *name, const char *what,
                                        const at::Tensor &tensor, std::vector<int64_t> splits,
                                        int size)
{
    if (!splits.empty())
        return splits;
    int64_t rows = tensor.dim() ? tensor.size(0) : 1;
    TORCH_CHECK(rows % size == 0, "commd: ", name, ": the ", what, " has ", rows,
                " rows, which cannot be divided evenly among ", size, " ranks; give split sizes");
    return std::vector<int64_t>(size, rows / size);
}

WorkPtr ProcessGroupCommd::alltoall_base(at::Tensor &output, at::Tensor &input,
                                         std::vector<int64_t> &output_splits,
                                         std::vector<int64_t> &input_splits,
                                         const c10d::AllToAllOptions &opts)
{
    Plan plan("all_to_all_single", "commd:all_to_all", c10d::OpType::ALLTOALL_BASE, opts.timeout);
    bool even = output_splits.empty() && input_splits.empty();

    check_tensor(plan.name, input);
    check_dtype(plan.name, "the output", output, input);
    auto in_splits = full_splits(plan.name, "input", input, input_splits, size_);
    auto out_splits = full_splits(plan.name, "output", output, output_splits, size_);
    auto send_counts = split_counts(plan.name, "input", input, in_splits, size_);
    auto recv_counts = split_counts(plan.name, "output", output, out_splits, size_);
    if (even)
        check_same(plan.name, "the output", output, input);
    at::Tensor from = plan.readable(input), to = plan.writable(output);
    bool in_place = even && from.const_data_ptr() == to.const_data_ptr();
    if (!in_place && Ranges({to}).touch(from))
        from = plan.copied(from);
    Elements elements = elements_to_move(input);
    elements.count = send_counts[0];
    commd_op &op = plan.add(even ? COMMD_ALL_TO_ALL : COMMD_ALL_TO_ALL_V, elements);
    op.send = from.const_data_ptr();
    op.recv = to.data_ptr();
    if (!even) {
        op.send_counts = plan.keep(std::move(send_counts));
        op.recv_counts = plan.keep(std::move(recv_counts));
    }
    plan.inputs.push_back(input);
    plan.outputs.push_back(output);
    return execute(std::move(plan), is_sync(opts));
}

/* On a GPU, behind what its stream has been given, if one is named or the group has used one; c10d
 * does not pass on which backend of a group it asked. */
WorkPtr ProcessGroupCommd::barrier(const c10d::BarrierOptions &opts)
{
    Plan plan("barrier", "commd:barrier", c10d::OpType::BARRIER, opts.timeout);

    plan.device =
        opts.device_ids.empty() ? last_device_.get() : last_device_.with_index(opts.device_ids[0]);
    if (plan.device)
        plan.outputs.push_back(at::empty({1}, at::dtype(at::kByte).device(*plan.device)));
    plan.add(COMMD_BARRIER, {COMMD_U8, 0});
    return execute(std::move(plan), is_sync(opts));
}

} // namespace commd
