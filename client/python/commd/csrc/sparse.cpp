/* sparse.cpp - sums of sparse tensors.
 *
 * Ranks have different elements and numbers of them. So: everybody gathers how many each rank
 * has, then all indices and values, and adds them up, in rank order: equal bits everywhere. How
 * much is gathered depends on the first gathering, so the second can be issued only after it;
 * both run on the caller's thread, also in an asynchronous call, where a queue that had to
 * wait in its middle would let the group's operations change places between ranks.
 */
#include "backend.h"

#include <algorithm>

#include <ATen/core/LegacyTypeDispatch.h>

namespace commd
{

namespace
{

void run_op(commd_group *group, const commd_op &op)
{
    int r = commd_run(group, &op);

    if (r)
        throw_last_error(r);
}

/* Elements of all ranks, those of each rank behind those of the one before. */
at::Tensor gather_all(commd_group *group, Plan &plan, const at::Tensor &mine,
                      const std::vector<int64_t> &nnz, int64_t row)
{
    int64_t total = 0;
    std::vector<size_t> counts;
    Elements unit = elements_to_move(at::empty({1}, mine.options()));

    for (int64_t n : nnz) {
        total += n;
        counts.push_back(static_cast<size_t>(n * row) * unit.count);
    }
    at::Tensor all = at::empty({total * row}, mine.options());
    commd_op &op = plan.add(COMMD_ALL_GATHER_V, elements_to_move(mine));
    op.send = mine.const_data_ptr();
    op.recv = all.data_ptr();
    op.recv_counts = plan.keep(std::move(counts));
    run_op(group, op);
    return all;
}

/* What all ranks must have in common, and how many elements each has. */
std::vector<int64_t> gather_nnz(commd_group *group, Plan &plan, const at::Tensor &tensor, int size,
                                int rank)
{
    std::vector<int64_t> mine{tensor._nnz(), tensor.sparse_dim(), tensor.dense_dim()}, all, nnz;

    for (int64_t n : tensor.sizes())
        mine.push_back(n);
    all.resize(mine.size() * size);
    commd_op &op = plan.add(COMMD_ALL_GATHER, {COMMD_I64, mine.size()});
    op.send = mine.data();
    op.recv = all.data();
    run_op(group, op);
    for (int r = 0; r < size; r++) {
        const int64_t *theirs = &all[mine.size() * r];
        TORCH_CHECK(std::equal(mine.begin() + 1, mine.end(), theirs + 1),
                    "commd: all_reduce of "
                    "sparse tensors: rank ",
                    r, " has another shape than rank ", rank);
        nnz.push_back(theirs[0]);
    }
    return nnz;
}

at::Tensor sum_sparse(commd_group *group, Plan &plan, const at::Tensor &tensor, int size, int rank)
{
    at::AutoDispatchBelowADInplaceOrView guard;
    at::Tensor input = tensor.coalesce();
    int64_t sparse = input.sparse_dim();
    std::vector<int64_t> nnz = gather_nnz(group, plan, input, size, rank);
    /* Indices by element: so each rank's are one block. */
    at::Tensor indices = input._indices().t().contiguous();
    at::Tensor values = input._values().contiguous();
    std::vector<int64_t> shape = values.sizes().vec();
    int64_t row = 1, total = 0;

    for (size_t i = 1; i < shape.size(); i++)
        row *= shape[i];
    for (int64_t n : nnz)
        total += n;
    shape[0] = total;
    at::Tensor all_indices = gather_all(group, plan, indices, nnz, sparse).view({total, sparse});
    at::Tensor all_values = gather_all(group, plan, values, nnz, row).view(shape);
    return at::_sparse_coo_tensor_unsafe(all_indices.t(), all_values, input.sizes(),
                                         input.options())
        .coalesce();
}

} // namespace

WorkPtr ProcessGroupCommd::allreduce_sparse(Tensors &tensors, const c10d::AllreduceOptions &opts)
{
    Plan plan("all_reduce", "commd:all_reduce", c10d::OpType::_ALLREDUCE_SPARSE, opts.timeout);
    Plan steps("all_reduce", "commd:all_reduce", c10d::OpType::_ALLREDUCE_SPARSE, opts.timeout);

    TORCH_CHECK(tensors.size() == 1, "commd: all_reduce takes one tensor per call, got ",
                tensors.size());
    const at::Tensor &tensor = tensors[0];
    TORCH_CHECK_NOT_IMPLEMENTED(tensor.layout() == at::kSparse && tensor.is_cpu(),
                                "commd: all_reduce of sparse tensors takes COO tensors in host "
                                "memory, got layout ",
                                tensor.layout(), " on ", tensor.device());
    Redop redop = to_redop(plan.name, opts.reduceOp);
    TORCH_CHECK_NOT_IMPLEMENTED(redop.op == COMMD_SUM || redop.op == COMMD_AVG,
                                "commd: all_reduce of sparse tensors: SUM and AVG are supported");
    TORCH_CHECK_NOT_IMPLEMENTED(
        redop.op == COMMD_SUM || !at::isIntegralType(tensor.scalar_type(), true),
        "commd: all_reduce: AVG of sparse ", tensor.scalar_type(), " is not defined");
    plan.inputs.push_back(tensor);
    plan.outputs.push_back(tensor);
    auto work = c10::make_intrusive<WorkCommd>(group_, rank_, std::move(plan));
    try {
        Group::Call call(*group_);
        at::AutoDispatchBelowADInplaceOrView guard;
        work->number(true);
        at::Tensor sum = sum_sparse(call.handle(), steps, tensor, size_, rank_);
        if (redop.op == COMMD_AVG)
            sum.div_(size_);
        tensor.copy_(sum);
    } catch (...) {
        work->settle(std::current_exception());
        throw;
    }
    work->settle(nullptr);
    return work;
}

} // namespace commd
