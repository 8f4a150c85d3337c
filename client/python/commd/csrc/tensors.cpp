/* tensors.cpp - which tensors and operators a collective takes, and their layout in memory.
 *
 * Refusals are Python's RuntimeError (NotImplementedError where something may come to work),
 * as those of torch's own CPU backend are. Nothing is copied behind the caller's back to make
 * a layout fit: a strided tensor that is reduced through a hidden copy would be slow without
 * a visible reason, and one that is reduced as it lies in memory would mix up elements when
 * the ranks' strides differ.
 */
#include "tensors.h"

#include <c10/util/Exception.h>

namespace commd {

namespace {

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

const char *redop_text(c10d::ReduceOp::RedOpType op)
{
    switch (op) {
    case c10d::ReduceOp::BAND:
        return "BAND";
    case c10d::ReduceOp::BOR:
        return "BOR";
    case c10d::ReduceOp::BXOR:
        return "BXOR";
    case c10d::ReduceOp::PREMUL_SUM:
        return "PREMUL_SUM";
    default:
        return "this operator";
    }
}

const char *begin_of(const at::Tensor &tensor)
{
    return static_cast<const char *>(tensor.const_data_ptr());
}

} // namespace

void check_tensor(const char *op, const at::Tensor &tensor)
{
    TORCH_CHECK(tensor.defined(), "commd: ", op, " got an undefined tensor");
    TORCH_CHECK_NOT_IMPLEMENTED(tensor.layout() == at::kStrided, "commd: ", op,
                                " takes dense tensors, got one of layout ", tensor.layout(),
                                "; call .to_dense()");
    if (!tensor.device().is_cpu()) {
        TORCH_CHECK_NOT_IMPLEMENTED(
            !tensor.device().is_cuda(), "commd: ", op, " got a tensor on ", tensor.device(),
            ", but commd was built without device memory; use CPU tensors, or one backend per "
            "device: backend=\"cpu:commd,cuda:nccl\"");
        TORCH_CHECK_NOT_IMPLEMENTED(false, "commd: ", op, " takes CPU tensors, got one on ",
                                    tensor.device());
    }
    TORCH_CHECK(tensor.is_contiguous(), "commd: ", op, " needs a contiguous tensor, got strides ",
                tensor.strides(), " for shape ", tensor.sizes(), "; call .contiguous()");
    TORCH_CHECK(!tensor.is_conj() && !tensor.is_neg(), "commd: ", op,
                " got a lazily conjugated or negated view; call .resolve_conj().resolve_neg()");
}

const at::Tensor &only_tensor(const char *op, const std::vector<at::Tensor> &tensors)
{
    TORCH_CHECK(tensors.size() == 1, "commd: ", op, " takes one tensor per call, got ",
                tensors.size());
    check_tensor(op, tensors[0]);
    return tensors[0];
}

void check_same(const char *op, const char *what, const at::Tensor &piece, const at::Tensor &like)
{
    check_tensor(op, piece);
    TORCH_CHECK(piece.scalar_type() == like.scalar_type(), "commd: ", op, ": ", what, " is ",
                piece.scalar_type(), ", but the other tensors are ", like.scalar_type());
    TORCH_CHECK(piece.numel() == like.numel(), "commd: ", op, ": ", what, " has shape ",
                piece.sizes(), ", but ", like.sizes(),
                " is needed; pieces of different sizes are not implemented yet");
}

void check_multiple(const char *op, const char *what, const at::Tensor &whole,
                    const at::Tensor &part, int n)
{
    check_tensor(op, whole);
    check_tensor(op, part);
    TORCH_CHECK(whole.scalar_type() == part.scalar_type(), "commd: ", op, ": the input is ",
                part.scalar_type(), " and the output ", whole.scalar_type());
    TORCH_CHECK(whole.numel() == part.numel() * n, "commd: ", op, ": ", what, " has ",
                whole.numel(), " elements, but ", n, " ranks x ", part.numel(), " = ",
                part.numel() * n, " are needed");
}

Elements elements_to_move(const at::Tensor &tensor)
{
    int dtype = native_dtype(tensor.scalar_type());

    if (dtype < 0)
        return {COMMD_U8, tensor.nbytes()};
    return {dtype, static_cast<size_t>(tensor.numel())};
}

Elements elements_to_reduce(const char *op, const at::Tensor &tensor, int redop)
{
    int dtype = native_dtype(tensor.scalar_type());

    TORCH_CHECK_NOT_IMPLEMENTED(
        dtype >= 0, "commd: ", op, " of ", tensor.scalar_type(),
        " is not implemented; supported are: float16 bfloat16 float32 float64 int8 int16 int32 "
        "int64 uint8 uint16 uint32 uint64 bool");
    TORCH_CHECK_NOT_IMPLEMENTED(dtype != COMMD_BOOL || redop != COMMD_AVG, "commd: ", op,
                                ": AVG of bool is not defined");
    return {dtype, static_cast<size_t>(tensor.numel())};
}

int to_redop(const char *op, const c10d::ReduceOp &op_wanted)
{
    switch (op_wanted.op_) {
    case c10d::ReduceOp::SUM:
        return COMMD_SUM;
    case c10d::ReduceOp::AVG:
        return COMMD_AVG;
    case c10d::ReduceOp::PRODUCT:
        return COMMD_PROD;
    case c10d::ReduceOp::MIN:
        return COMMD_MIN;
    case c10d::ReduceOp::MAX:
        return COMMD_MAX;
    default:
        TORCH_CHECK_NOT_IMPLEMENTED(false, "commd: ", op, " with ", redop_text(op_wanted.op_),
                                    " is not implemented yet; supported are: SUM AVG PRODUCT MIN "
                                    "MAX");
    }
}

bool overlap(const at::Tensor &a, const at::Tensor &b)
{
    return begin_of(a) < begin_of(b) + b.nbytes() && begin_of(b) < begin_of(a) + a.nbytes();
}

bool adjacent(const std::vector<at::Tensor> &tensors)
{
    for (size_t i = 1; i < tensors.size(); i++) {
        if (begin_of(tensors[i]) != begin_of(tensors[0]) + i * tensors[0].nbytes())
            return false;
    }
    return true;
}

} // namespace commd
