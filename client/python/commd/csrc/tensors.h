/* tensors.h - which tensors and operators a collective takes, and their layout in memory.
 * Every refusal names the operation and what to do instead. */
#pragma once

#include <vector>

#include <ATen/ATen.h>
#include <commd/commd.h>
#include <torch/csrc/distributed/c10d/Types.hpp>

namespace commd {

/* How the library is told about elements: natively, or as bytes. */
struct Elements {
    int dtype;
    size_t count;
};

/* Dense, in host memory, contiguous. */
void check_tensor(const char *op, const at::Tensor &tensor);
/* c10d's lists of tensors of one device: we take exactly one. */
const at::Tensor &only_tensor(const char *op, const std::vector<at::Tensor> &tensors);
/* @piece has the dtype and the number of elements of @like. */
void check_same(const char *op, const char *what, const at::Tensor &piece, const at::Tensor &like);
/* @whole has the dtype of @part and @n times its elements. */
void check_multiple(const char *op, const char *what, const at::Tensor &whole,
                    const at::Tensor &part, int n);

/* Any dtype can be moved; one that the library does not know travels as bytes. */
Elements elements_to_move(const at::Tensor &tensor);
/* Throws for what cannot be reduced with @redop. */
Elements elements_to_reduce(const char *op, const at::Tensor &tensor, int redop);
int to_redop(const char *op, const c10d::ReduceOp &op_wanted);

bool overlap(const at::Tensor &a, const at::Tensor &b);
/* True if the tensors, all alike, lie one behind the other, as chunks of one tensor do. */
bool adjacent(const std::vector<at::Tensor> &tensors);

} // namespace commd
