/* kernels.cpp - operators: those of the CPU, run on device memory.
 *
 * An operator whose results' shapes are known beforehand (it writes into its arguments, or torch
 * can compute the shapes on its device "meta") is put on the current stream by cuLaunchHostFunc and
 * returns at once. It holds no memory: as on a GPU, memory that is freed meanwhile is written by
 * whoever has it now. For others, such as nonzero, and where random numbers are drawn, the host
 * waits for the stream.
 *
 * A CPU tensor that is an argument is copied before the call returns.
 *
 * With FAKEGPU_LAZY=1 the first use of an operator for a type waits for all that the device has to
 * do, as CUDA may that loads each kernel at its first use (CUDA_MODULE_LOADING=LAZY, the default).
 */
#include "fakegpu.h"

#include <atomic>
#include <map>
#include <mutex>
#include <set>

#include <ATen/EmptyTensor.h>
#include <ATen/NativeFunctions.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/core/DeviceGuard.h>
#include <torch/library.h>

namespace fakegpu
{

namespace
{

using torch::jit::Stack;

std::atomic<size_t> launched{0};
std::mutex waited_lock;
std::map<std::string, size_t> waited;

bool ours(const at::Tensor &tensor)
{
    return tensor.defined() && tensor.device().type() == kType;
}

/* The same memory, for the CPU; owns nothing. */
at::Tensor seen_by_cpu(const at::Tensor &tensor)
{
    return at::from_blob(tensor.data_ptr(), tensor.sizes(), tensor.strides(),
                         at::TensorOptions().dtype(tensor.dtype()).device(at::kCPU));
}

at::Tensor shape_only(const at::Tensor &tensor)
{
    if (!tensor.defined())
        return tensor;
    return at::empty_strided(tensor.sizes(), tensor.strides(), tensor.options().device(at::kMeta));
}

/* @value with all tensors in it replaced by what @change makes of them, and devices by @device. */
template <class F> c10::IValue changed(const c10::IValue &value, F change, c10::Device device)
{
    if (value.isTensor())
        return change(value.toTensor());
    if (value.isTensorList()) {
        c10::List<at::Tensor> list;
        for (const at::Tensor &tensor : value.toTensorList())
            list.push_back(change(tensor));
        return list;
    }
    if (value.isOptionalTensorList()) {
        c10::List<std::optional<at::Tensor>> list;
        for (const std::optional<at::Tensor> tensor : value.toOptionalTensorList())
            list.push_back(tensor ? std::optional<at::Tensor>(change(*tensor)) : tensor);
        return list;
    }
    if (value.isDevice() && value.toDevice().type() == kType)
        return device;
    return value;
}

template <class F> Stack changed(const Stack &args, F change, c10::Device device)
{
    Stack result;

    for (const c10::IValue &value : args)
        result.push_back(changed(value, change, device));
    return result;
}

/* Calls @f with each tensor in @value, if it is a tensor or a list of them. */
template <class F> void each_tensor(const c10::IValue &value, F f)
{
    if (value.isTensor()) {
        f(value.toTensor());
    } else if (value.isTensorList()) {
        for (const at::Tensor &tensor : value.toTensorList())
            f(tensor);
    }
}

struct Launch {
    c10::OperatorHandle op;
    Stack args;
    /* Where what it returns goes, as seen by the CPU; undefined: nowhere. */
    std::vector<at::Tensor> results;

    void run()
    {
        at::AutoDispatchBelowADInplaceOrView below;
        at::NoGradGuard no_grad;
        size_t next = 0;

        op.callBoxed(&args);
        if (results.empty())
            return;
        for (const c10::IValue &value : args) {
            each_tensor(value, [&](const at::Tensor &made) {
                at::Tensor &to = results[next++];
                if (to.defined() && made.defined())
                    to.copy_(made);
                else if (to.defined())
                    to.zero_(); /* a gradient that nobody asked for */
            });
        }
    }
};

void run_launch(void *arg)
{
    std::unique_ptr<Launch> launch(static_cast<Launch *>(arg));

    try {
        launch->run();
    } catch (const std::exception &e) {
        fprintf(stderr, "fakegpu: %s failed on the device: %s\n",
                launch->op.schema().name().c_str(), e.what());
        abort(); /* a GPU would be of no more use either */
    }
}

void load_at_first_use(const c10::OperatorHandle &op, const Stack &args)
{
    static const bool lazy = getenv("FAKEGPU_LAZY") != nullptr;
    static std::set<std::string> loaded;
    std::string kernel = op.schema().name() + "." + op.schema().overload_name();

    if (!lazy)
        return;
    for (const c10::IValue &value : args) {
        if (value.isTensor() && value.toTensor().defined()) {
            kernel += c10::toString(value.toTensor().scalar_type());
            break;
        }
    }
    {
        std::lock_guard<std::mutex> guard(waited_lock);
        if (!loaded.insert(kernel).second)
            return;
    }
    must(driver().ctx_synchronize(), "cuCtxSynchronize");
}

void launch(const c10::OperatorHandle &op, Stack args, std::vector<at::Tensor> results,
            c10::DeviceIndex index)
{
    enter(index);
    load_at_first_use(op, args);

    auto *one = new Launch{op, std::move(args), std::move(results)};

    launched++;
    must(driver().host_func(native(current_stream(index)), run_launch, one), "cuLaunchHostFunc");
}

Stack for_cpu(const Stack &args)
{
    return changed(
        args,
        [](const at::Tensor &tensor) {
            if (!tensor.defined())
                return tensor;
            return ours(tensor) ? seen_by_cpu(tensor) : tensor.clone();
        },
        at::kCPU);
}

/* What is returned for result @i of an operator that writes into its arguments: that argument. */
const c10::IValue *written_argument(const c10::FunctionSchema &schema, const Stack &args, size_t i)
{
    const auto *result = schema.returns()[i].alias_info();

    if (!result || !result->isWrite())
        return nullptr;
    for (size_t k = 0; k < args.size(); k++) {
        const auto *argument = schema.arguments()[k].alias_info();
        if (argument && argument->isWrite() && argument->beforeSets() == result->beforeSets())
            return &args[k];
    }
    return nullptr;
}

/* Into arguments that have room: with a size of 0 they would have to grow. Some CPU operators use
 * an argument "out" for what is larger than their result, so they get another one. */
bool launch_in_place(const c10::OperatorHandle &op, Stack *stack, const Stack &args,
                     c10::DeviceIndex index)
{
    const auto &schema = op.schema();
    Stack results;
    bool writes = false, grows = false;

    for (size_t i = 0; i < schema.returns().size(); i++) {
        const c10::IValue *written = written_argument(schema, args, i);
        if (!written)
            return false;
        results.push_back(*written);
    }
    for (size_t k = 0; k < args.size(); k++) {
        const auto *argument = schema.arguments()[k].alias_info();
        if (!argument || !argument->isWrite())
            continue;
        writes = true;
        if (schema.arguments()[k].is_out())
            each_tensor(args[k], [&](const at::Tensor &tensor) { grows |= tensor.numel() == 0; });
    }
    if (!writes || grows)
        return false;
    Stack cpu = for_cpu(args);
    std::vector<at::Tensor> outs;
    for (size_t k = 0; k < args.size(); k++) {
        const auto &argument = schema.arguments()[k];
        if (argument.is_out() && cpu[k].isTensor()) {
            outs.push_back(cpu[k].toTensor());
            cpu[k] = at::empty({0}, outs.back().options());
        }
    }
    launch(op, std::move(cpu), std::move(outs), index);
    torch::jit::drop(*stack, args.size());
    for (c10::IValue &result : results)
        stack->push_back(std::move(result));
    return true;
}

at::Tensor made_like(const at::Tensor &shape, c10::DeviceIndex index)
{
    if (!shape.defined())
        return shape;
    return at::empty_strided(shape.sizes(), shape.strides(),
                             shape.options().device(c10::Device(kType, index)));
}

/* Into new tensors, if torch can tell their shapes. */
bool launch_functional(const c10::OperatorHandle &op, Stack *stack, const Stack &args,
                       c10::DeviceIndex index)
{
    const auto &schema = op.schema();
    Stack shapes;
    std::vector<at::Tensor> results;

    for (const auto &argument : schema.arguments()) {
        if (argument.alias_info())
            return false;
    }
    for (const auto &result : schema.returns()) {
        if (result.type()->kind() != c10::TypeKind::TensorType || result.alias_info())
            return false;
    }
    if (schema.returns().empty())
        return false;
    try {
        at::AutoDispatchBelowADInplaceOrView below;
        shapes = changed(args, shape_only, at::kMeta);
        op.callBoxed(&shapes);
    } catch (const std::exception &) {
        return false; /* not implemented, or its business to complain */
    }
    shapes = changed(
        shapes, [&](const at::Tensor &shape) { return made_like(shape, index); }, at::kMeta);
    for (const c10::IValue &value : shapes)
        results.push_back(value.toTensor().defined() ? seen_by_cpu(value.toTensor())
                                                     : at::Tensor());
    launch(op, for_cpu(args), std::move(results), index);
    torch::jit::drop(*stack, args.size());
    for (c10::IValue &value : shapes)
        stack->push_back(std::move(value));
    return true;
}

/* A CPU result as a tensor of ours: a view of an argument stays one. */
at::Tensor brought_back(const at::Tensor &made, const std::vector<at::Tensor> &arguments,
                        c10::DeviceIndex index)
{
    if (!made.defined())
        return made;
    const char *at = static_cast<const char *>(made.const_data_ptr());
    for (const at::Tensor &base : arguments) {
        const char *begin = static_cast<const char *>(base.storage().data());
        if (made.numel() && at >= begin && at < begin + base.storage().nbytes()) {
            at::Tensor view = at::empty({0}, made.options().device(base.device()));
            view.set_(base.storage(), (at - begin) / static_cast<int64_t>(made.itemsize()),
                      made.sizes(), made.strides());
            return view;
        }
    }
    return made.to(c10::Device(kType, index));
}

void wait_and_run(const c10::OperatorHandle &op, Stack *stack, const Stack &args,
                  c10::DeviceIndex index)
{
    const auto &schema = op.schema();
    std::vector<at::Tensor> arguments;
    std::vector<std::pair<at::Tensor, at::Tensor>> grown;
    Stack cpu;

    {
        std::lock_guard<std::mutex> guard(waited_lock);
        waited[schema.name()]++;
    }
    synchronize(index);
    for (size_t k = 0; k < args.size(); k++) {
        bool out = schema.arguments()[k].is_out();
        auto change = [&](const at::Tensor &tensor) {
            if (!ours(tensor))
                return tensor;
            arguments.push_back(tensor);
            if (!out || tensor.numel())
                return seen_by_cpu(tensor);
            grown.emplace_back(tensor, at::empty({0}, tensor.options().device(at::kCPU)));
            return grown.back().second;
        };
        cpu.push_back(changed(args[k], change, at::kCPU));
    }
    at::AutoDispatchBelowADInplaceOrView below;
    op.callBoxed(&cpu);
    for (auto &[to, from] : grown) {
        to.resize_(from.sizes());
        to.copy_(from);
    }
    for (size_t i = 0; i < cpu.size(); i++) {
        if (const c10::IValue *written = written_argument(schema, args, i))
            cpu[i] = *written;
        else
            cpu[i] = changed(
                cpu[i],
                [&](const at::Tensor &made) { return brought_back(made, arguments, index); },
                c10::Device(kType, index));
    }
    torch::jit::drop(*stack, args.size());
    for (c10::IValue &value : cpu)
        stack->push_back(std::move(value));
}

c10::DeviceIndex index_of(const Stack &args)
{
    c10::DeviceIndex found = -1;

    for (const c10::IValue &value : args) {
        each_tensor(value, [&](const at::Tensor &tensor) {
            if (found < 0 && ours(tensor))
                found = tensor.device().index();
        });
        if (found < 0 && value.isDevice() && value.toDevice().has_index())
            found = value.toDevice().index();
    }
    return found < 0 ? current_device() : found;
}

bool draws_or_depends(const c10::OperatorHandle &op)
{
    for (at::Tag tag : op.getTags()) {
        if (tag == at::Tag::nondeterministic_seeded || tag == at::Tag::data_dependent_output ||
            tag == at::Tag::dynamic_output_shape)
            return true;
    }
    return false;
}

void any_operator(const c10::OperatorHandle &op, Stack *stack)
{
    Stack args(stack->end() - static_cast<long>(op.schema().arguments().size()), stack->end());
    c10::DeviceIndex index = index_of(args);
    c10::DeviceGuard guard(c10::Device(kType, index));

    if (draws_or_depends(op) ||
        (!launch_in_place(op, stack, args, index) && !launch_functional(op, stack, args, index)))
        wait_and_run(op, stack, args, index);
}

/* ---- what has to be written: memory, views and copies ---------------------------------------- */

at::Tensor empty(at::IntArrayRef size, std::optional<at::ScalarType> dtype,
                 std::optional<at::Layout>, std::optional<at::Device> device, std::optional<bool>,
                 std::optional<at::MemoryFormat> format)
{
    c10::OptionalDeviceGuard guard(device);

    return at::detail::empty_generic(size, allocator(),
                                     c10::DispatchKeySet(c10::DispatchKey::PrivateUse1),
                                     c10::dtype_or_default(dtype), format);
}

at::Tensor empty_strided(at::IntArrayRef size, at::IntArrayRef stride,
                         std::optional<at::ScalarType> dtype, std::optional<at::Layout>,
                         std::optional<at::Device> device, std::optional<bool>)
{
    c10::OptionalDeviceGuard guard(device);

    return at::detail::empty_strided_generic(size, stride, allocator(),
                                             c10::DispatchKeySet(c10::DispatchKey::PrivateUse1),
                                             c10::dtype_or_default(dtype));
}

const at::Tensor &resize(const at::Tensor &self, at::IntArrayRef size,
                         std::optional<at::MemoryFormat> format)
{
    c10::DeviceGuard guard(self.device());

    synchronize(self.device().index());
    return at::native::resize_(self, size, format);
}

at::Tensor as_strided(const at::Tensor &self, at::IntArrayRef size, at::IntArrayRef stride,
                      std::optional<int64_t> offset)
{
    return at::native::as_strided_tensorimpl(self, size, stride, offset);
}

at::Tensor &set_storage(at::Tensor &self, at::Storage storage, int64_t offset, at::IntArrayRef size,
                        at::IntArrayRef stride)
{
    return at::native::set_storage_cpu_(self, std::move(storage), offset, size, stride);
}

at::Scalar local_scalar(const at::Tensor &self)
{
    synchronize(self.device().index());
    return at::native::_local_scalar_dense_cpu(seen_by_cpu(self));
}

void record(at::Tensor &self, at::Stream stream)
{
    record_stream(self.storage().data_ptr(), stream);
}

bool same_layout(const at::Tensor &a, const at::Tensor &b)
{
    return a.dtype() == b.dtype() && a.is_non_overlapping_and_dense() && a.sizes() == b.sizes() &&
           a.strides() == b.strides();
}

void copy_on_device(const at::Tensor &from, const at::Tensor &to)
{
    c10::DeviceIndex index = to.device().index();

    if (same_layout(from, to)) {
        copy_bytes(to.data_ptr(), from.const_data_ptr(), to.nbytes(), index);
        return;
    }
    static auto op = c10::Dispatcher::singleton().findSchemaOrThrow("aten::copy_", "");
    launch(op, {seen_by_cpu(to), seen_by_cpu(from), false}, {}, index);
}

/* Host memory that is not pinned: it may be reused once the call returns. */
at::Tensor copy_from(const at::Tensor &self, const at::Tensor &to, bool)
{
    c10::DeviceGuard guard(ours(to) ? to.device() : self.device());
    c10::DeviceIndex index = guard.current_device().index();
    at::Tensor target = to;

    if (ours(self) && ours(to)) {
        if (self.device() != to.device())
            synchronize(self.device().index());
        copy_on_device(self, to);
        return to;
    }
    if (ours(to)) {
        at::Tensor host = self.to(to.scalar_type()).expand(to.sizes()).contiguous();
        at::Tensor there = at::empty(host.sizes(), to.options());
        copy_bytes(there.data_ptr(), host.const_data_ptr(), host.nbytes(), index);
        synchronize(index);
        copy_on_device(there, to);
        return to;
    }
    at::Tensor lies = at::empty(self.sizes(), self.options());
    copy_on_device(self, lies);
    at::Tensor host = at::empty(self.sizes(), self.options().device(at::kCPU));
    copy_bytes(host.data_ptr(), lies.const_data_ptr(), lies.nbytes(), index);
    synchronize(index);
    at::NoGradGuard no_grad;
    target.copy_(host);
    return to;
}

at::Tensor copy_from_and_resize(const at::Tensor &self, const at::Tensor &to)
{
    to.resize_(self.sizes());
    return copy_from(self, to, false);
}

} // namespace

size_t asynchronous()
{
    return launched;
}

std::map<std::string, size_t> synchronous()
{
    std::lock_guard<std::mutex> guard(waited_lock);

    return waited;
}

TORCH_LIBRARY_IMPL(_, PrivateUse1, m)
{
    m.fallback(torch::CppFunction::makeFromBoxedFunction<&any_operator>());
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m)
{
    m.impl("empty.memory_format", &empty);
    m.impl("empty_strided", &empty_strided);
    m.impl("resize_", &resize);
    m.impl("as_strided", &as_strided);
    m.impl("view", &at::native::view);
    m.impl("_reshape_alias", &at::native::_reshape_alias);
    m.impl("set_.source_Tensor", &at::native::set_tensor_);
    m.impl("set_.source_Storage", &at::native::set_);
    m.impl("set_.source_Storage_storage_offset", &set_storage);
    m.impl("_local_scalar_dense", &local_scalar);
    m.impl("record_stream", &record);
    m.impl("_copy_from", &copy_from);
    m.impl("_copy_from_and_resize", &copy_from_and_resize);
}

} // namespace fakegpu
