/* ops.cpp - torch.ops.commd: collectives without torch.distributed in the path.
 *
 *     torch.ops.commd.all_reduce_(tensor, "sum", group.group_name)
 *
 * An operator of PyTorch's own kind: torch.compile traces it, with the kernel for meta tensors,
 * as one that changes its argument. It blocks, on the caller's thread; of a tensor on a GPU it is
 * enqueued on the current stream, as any other operator is.
 *
 * Groups are found by torch's name. Looking one up takes a lock; each thread remembers what it
 * found last, until any group comes or goes.
 */
#include "ops.h"

#include <mutex>
#include <string_view>
#include <unordered_map>

#include <c10/util/Exception.h>
#include <c10/core/DeviceGuard.h>
#include <torch/library.h>

#include "device.h"
#include "plan.h"
#include "work.h"

namespace commd
{

namespace
{

struct Registry {
    std::mutex lock;
    std::atomic<uint64_t> version{1}; /* of groups */
    std::unordered_map<std::string, std::weak_ptr<Group>> groups;
};

Registry &registry()
{
    static auto *all = new Registry; /* never destroyed: see group.cpp */
    return *all;
}

std::shared_ptr<Group> look_up(const std::string &name)
{
    Registry &all = registry();
    std::lock_guard<std::mutex> guard(all.lock);
    auto found = all.groups.find(name);
    auto group = found == all.groups.end() ? nullptr : found->second.lock();

    TORCH_CHECK(group, "commd: no group named \"", name,
                "\" with backend \"commd\" in this process; pass group.group_name of one that "
                "exists");
    return group;
}

std::shared_ptr<Group> find_group(std::string_view name)
{
    thread_local struct {
        uint64_t version = 0;
        std::string name;
        std::weak_ptr<Group> group;
    } last;
    uint64_t version = registry().version.load(std::memory_order_acquire);

    if (last.version == version && last.name == name) {
        if (auto group = last.group.lock())
            return group;
    }
    auto group = look_up(std::string(name));
    last = {version, std::string(name), group};
    return group;
}

void all_reduce_(const at::Tensor &tensor, c10::string_view op_name, c10::string_view group_name)
{
    static constexpr const char *kName = "all_reduce_";
    Redop redop = to_redop(kName, std::string_view(op_name.data(), op_name.size()));
    auto group = find_group(std::string_view(group_name.data(), group_name.size()));

    check_tensor(kName, tensor);
    Plan plan(kName, nullptr, c10d::OpType::ALLREDUCE, c10d::kUnsetTimeout);
    Elements elements = elements_to_reduce(kName, tensor, redop);
    at::Tensor memory = plan.in_place(tensor);
    commd_op &op = plan.add(COMMD_ALL_REDUCE, elements);
    op.redop = redop.op;
    op.recv = memory.data_ptr();
    op.send = op.recv;
    c10::OptionalDeviceGuard guard;
    if (C10_UNLIKELY(!tensor.is_cpu())) {
        free_retired_works();
        guard.reset_device(tensor.device());
        op.memory = COMMD_MEMORY_CUDA;
        op.stream = native_handle(current_stream(tensor.device()));
    }
    Group::Call call(*group);
    plan.inputs.push_back(tensor);
    plan.outputs.push_back(tensor);
    RecordId record = record_begin(group->recorded(), plan, group->next_sequence(), true);
    int r = commd_run(call.handle(), &op);
    if (C10_UNLIKELY(r)) {
        group->note_failure(*commd_last_error());
        record_end(record, commd_last_error()->message);
        throw_last_error(r);
    }
    plan.copy_back();
    record_end(record, nullptr);
    if (!tensor.is_inference()) /* else there is no version, and nobody who compares it */
        tensor.unsafeGetTensorImpl()->bump_version();
}

void all_reduce_meta(const at::Tensor &, c10::string_view, c10::string_view)
{
}

} // namespace

void register_group(const std::string &name, const std::shared_ptr<Group> &group)
{
    Registry &all = registry();
    std::lock_guard<std::mutex> guard(all.lock);

    all.groups[name] = group;
    all.version.fetch_add(1, std::memory_order_release);
}

void unregister_group(const std::string &name, const std::shared_ptr<Group> &group)
{
    if (!group->ours())
        return; /* a forked process: the lock may have been held at the fork */
    Registry &all = registry();
    std::lock_guard<std::mutex> guard(all.lock);
    auto found = all.groups.find(name);

    if (found == all.groups.end() || found->second.lock() != group)
        return;
    all.groups.erase(found);
    all.version.fetch_add(1, std::memory_order_release);
}

} // namespace commd

TORCH_LIBRARY(commd, m)
{
    m.def("all_reduce_(Tensor(a!) tensor, str op, str group_name) -> ()");
}

TORCH_LIBRARY_IMPL(commd, CPU, m)
{
    m.impl("all_reduce_", &commd::all_reduce_);
}

TORCH_LIBRARY_IMPL(commd, CUDA, m)
{
    m.impl("all_reduce_", &commd::all_reduce_);
}

TORCH_LIBRARY_IMPL(commd, PrivateUse1, m)
{
    m.impl("all_reduce_", &commd::all_reduce_);
}

TORCH_LIBRARY_IMPL(commd, Meta, m)
{
    m.impl("all_reduce_", &commd::all_reduce_meta);
}
