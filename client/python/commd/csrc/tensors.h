/* tensors.h - which tensors and operators a collective takes, and how the library is told.
 * Every refusal names the operation and what to do instead. */
#pragma once

#include <string>
#include <vector>

#include <ATen/ATen.h>
#include <commd/commd.h>
#include <torch/csrc/distributed/c10d/Types.hpp>

namespace commd
{

/* How the library is told about elements: natively, or as bytes. */
struct Elements {
    int dtype;
    size_t count;
};

struct Redop {
    int op;       /* enum commd_redop */
    double scale; /* COMMD_PREMUL_SUM */
};

/* Dense, in host memory or on a GPU. */
void check_tensor(const char *op, const at::Tensor &tensor);
/* c10d's lists of tensors of one device: we take exactly one. */
const at::Tensor &only_tensor(const char *op, const std::vector<at::Tensor> &tensors);
/* One list with one tensor for each of @n ranks. */
const std::vector<at::Tensor> &only_list(const char *op, const char *what,
                                         const std::vector<std::vector<at::Tensor>> &lists, int n);
/* @piece has the dtype of @like, and, unless the operation takes blocks of different sizes, as
 * many elements. */
void check_dtype(const char *op, const char *what, const at::Tensor &piece, const at::Tensor &like);
void check_same(const char *op, const char *what, const at::Tensor &piece, const at::Tensor &like);
/* @whole has the dtype of @part and @n times its elements. */
void check_multiple(const char *op, const char *what, const at::Tensor &whole,
                    const at::Tensor &part, int n);
void check_root(const char *op, int64_t root, int size);

/* Any dtype can be moved; one that the library does not know travels as bytes. */
Elements elements_to_move(const at::Tensor &tensor);
/* Throws for what cannot be reduced with @redop. */
Elements elements_to_reduce(const char *op, const at::Tensor &tensor, const Redop &redop);
Redop to_redop(const char *op, const c10d::ReduceOp &op_wanted);
/* From "sum", "avg" ... as torch's functional collectives spell them. */
Redop to_redop(const char *op, std::string_view name);

} // namespace commd
