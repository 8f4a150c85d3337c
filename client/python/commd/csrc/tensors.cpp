/* tensors.cpp - which tensors and operators a collective takes, and their layout in memory.
 *
 * Refusals are Python's RuntimeError (NotImplementedError where something may come to work), as
 * those of torch's own CPU backend are. What does not fit is refused here, before anything is
 * issued, so that one rank's mistake does not cost the others their operation.
 *
 * Complex numbers are pairs of real ones: that is right for sums, and for nothing else.
 */
#include "tensors.h"

#include <c10/util/Exception.h>

#include "device.h"

namespace commd
{

namespace
{

/* -1: unknown to the library. */
int native_dtype(at::ScalarType type)
{
    switch (type) {
    case at::kChar:
        return COMMD_I8;
    case at::kByte:
        return COMMD_U8;
    case at::kShort:
        return COMMD_I16;
    case at::kUInt16:
        return COMMD_U16;
    case at::kInt:
        return COMMD_I32;
    case at::kUInt32:
        return COMMD_U32;
    case at::kLong:
        return COMMD_I64;
    case at::kUInt64:
        return COMMD_U64;
    case at::kHalf:
        return COMMD_F16;
    case at::kBFloat16:
        return COMMD_BF16;
    case at::kFloat:
        return COMMD_F32;
    case at::kDouble:
        return COMMD_F64;
    case at::kBool:
        return COMMD_BOOL;
    default:
        return -1;
    }
}

const char *redop_text(int op)
{
    static const char *const names[] = {"SUM",  "AVG", "PRODUCT", "MIN",       "MAX",
                                        "BAND", "BOR", "BXOR",    "PREMUL_SUM"};

    return names[op];
}

bool is_sum(int op)
{
    return op == COMMD_SUM || op == COMMD_AVG || op == COMMD_PREMUL_SUM;
}

bool is_bitwise(int op)
{
    return op == COMMD_BAND || op == COMMD_BOR || op == COMMD_BXOR;
}

/* torch.distributed._make_nccl_premul_sum() takes a number or a tensor of one element. */
double factor_of(const char *op, const c10d::ReduceOp &op_wanted)
{
    const auto *supplement =
        static_cast<const c10d::NCCLPreMulSumSupplement *>(op_wanted.supplement_.get());

    TORCH_CHECK(supplement, "commd: ", op,
                " with PREMUL_SUM needs a factor; make the operator by "
                "torch.distributed._make_nccl_premul_sum(factor)");
    if (supplement->tensor_factor.defined())
        return supplement->tensor_factor.item<double>();
    return supplement->double_factor;
}

} // namespace

void check_tensor(const char *op, const at::Tensor &tensor)
{
    TORCH_CHECK(tensor.defined(), "commd: ", op, " got an undefined tensor");
    TORCH_CHECK_NOT_IMPLEMENTED(tensor.layout() == at::kStrided, "commd: ", op,
                                " takes dense tensors, got one of layout ", tensor.layout(),
                                "; call .to_dense()");
    TORCH_CHECK_NOT_IMPLEMENTED(
        C10_LIKELY(tensor.is_cpu()) || is_gpu(tensor.device()), "commd: ", op,
        " takes tensors on the CPU and on CUDA GPUs, got one on ", tensor.device());
}

const at::Tensor &only_tensor(const char *op, const std::vector<at::Tensor> &tensors)
{
    TORCH_CHECK(tensors.size() == 1, "commd: ", op, " takes one tensor per call, got ",
                tensors.size());
    check_tensor(op, tensors[0]);
    return tensors[0];
}

const std::vector<at::Tensor> &only_list(const char *op, const char *what,
                                         const std::vector<std::vector<at::Tensor>> &lists, int n)
{
    TORCH_CHECK(lists.size() == 1, "commd: ", op, " takes one list of ", what, " tensors, got ",
                lists.size());
    TORCH_CHECK(lists[0].size() == static_cast<size_t>(n), "commd: ", op, ": ", lists[0].size(),
                " ", what, " tensors for a group of ", n);
    return lists[0];
}

void check_dtype(const char *op, const char *what, const at::Tensor &piece, const at::Tensor &like)
{
    check_tensor(op, piece);
    TORCH_CHECK(piece.scalar_type() == like.scalar_type(), "commd: ", op, ": ", what, " is ",
                piece.scalar_type(), ", but the other tensors are ", like.scalar_type());
}

void check_same(const char *op, const char *what, const at::Tensor &piece, const at::Tensor &like)
{
    check_dtype(op, what, piece, like);
    TORCH_CHECK(piece.numel() == like.numel(), "commd: ", op, ": ", what, " has shape ",
                piece.sizes(), ", but ", like.sizes(), " is needed");
}

void check_multiple(const char *op, const char *what, const at::Tensor &whole,
                    const at::Tensor &part, int n)
{
    check_tensor(op, whole);
    check_tensor(op, part);
    TORCH_CHECK(whole.scalar_type() == part.scalar_type(), "commd: ", op, ": ", what, " is ",
                whole.scalar_type(), ", but the other tensor is ", part.scalar_type());
    TORCH_CHECK(whole.numel() == part.numel() * n, "commd: ", op, ": ", what, " has ",
                whole.numel(), " elements, but ", n, " ranks x ", part.numel(), " = ",
                part.numel() * n, " are needed");
}

void check_root(const char *op, int64_t root, int size)
{
    TORCH_CHECK(root >= 0 && root < size, "commd: ", op, ": rank ", root, " of a group of ", size);
}

Elements elements_to_move(const at::Tensor &tensor)
{
    int dtype = native_dtype(tensor.scalar_type());

    if (dtype < 0)
        return {COMMD_U8, tensor.nbytes()};
    return {dtype, static_cast<size_t>(tensor.numel())};
}

Elements elements_to_reduce(const char *op, const at::Tensor &tensor, const Redop &redop)
{
    at::ScalarType type = tensor.scalar_type();
    bool complex = at::isComplexType(type);
    int dtype = native_dtype(complex ? at::toRealValueType(type) : type);

    TORCH_CHECK_NOT_IMPLEMENTED(
        dtype >= 0, "commd: ", op, " of ", type,
        " is not implemented; supported are: float16 bfloat16 float32 float64 int8 int16 int32 "
        "int64 uint8 uint16 uint32 uint64 bool, and sums of complex numbers");
    bool floating = complex || at::isFloatingType(type);
    bool defined = (!complex || is_sum(redop.op)) && (!floating || !is_bitwise(redop.op)) &&
                   (redop.op != COMMD_PREMUL_SUM || floating) &&
                   (redop.op != COMMD_AVG || dtype != COMMD_BOOL);
    TORCH_CHECK_NOT_IMPLEMENTED(defined, "commd: ", op, ": ", redop_text(redop.op), " of ", type,
                                " is not defined");
    return {dtype, static_cast<size_t>(tensor.numel()) * (complex ? 2 : 1)};
}

Redop to_redop(const char *op, const c10d::ReduceOp &op_wanted)
{
    switch (op_wanted.op_) {
    case c10d::ReduceOp::SUM:
        return {COMMD_SUM, 0};
    case c10d::ReduceOp::AVG:
        return {COMMD_AVG, 0};
    case c10d::ReduceOp::PRODUCT:
        return {COMMD_PROD, 0};
    case c10d::ReduceOp::MIN:
        return {COMMD_MIN, 0};
    case c10d::ReduceOp::MAX:
        return {COMMD_MAX, 0};
    case c10d::ReduceOp::BAND:
        return {COMMD_BAND, 0};
    case c10d::ReduceOp::BOR:
        return {COMMD_BOR, 0};
    case c10d::ReduceOp::BXOR:
        return {COMMD_BXOR, 0};
    case c10d::ReduceOp::PREMUL_SUM:
        return {COMMD_PREMUL_SUM, factor_of(op, op_wanted)};
    default:
        TORCH_CHECK_NOT_IMPLEMENTED(false, "commd: ", op, " with operator number ",
                                    static_cast<int>(op_wanted.op_),
                                    " is not implemented; supported are: SUM AVG PRODUCT MIN MAX "
                                    "BAND BOR BXOR PREMUL_SUM");
    }
}

Redop to_redop(const char *op, std::string_view name)
{
    static const struct {
        std::string_view name;
        int op;
    } known[] = {{"sum", COMMD_SUM},   {"avg", COMMD_AVG}, {"product", COMMD_PROD},
                 {"prod", COMMD_PROD}, {"min", COMMD_MIN}, {"max", COMMD_MAX},
                 {"band", COMMD_BAND}, {"bor", COMMD_BOR}, {"bxor", COMMD_BXOR}};

    for (const auto &row : known) {
        if (row.name == name)
            return {row.op, 0};
    }
    TORCH_CHECK(false, "commd: ", op, ": unknown operator \"", name,
                "\"; allowed: sum avg product min max band bor bxor");
}

} // namespace commd
