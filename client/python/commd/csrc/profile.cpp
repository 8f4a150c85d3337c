/* profile.cpp - what torch's profiler shows of a call.
 *
 *     commd:all_reduce      the operation, from the call to its end (c10d::Work makes it)
 *     record_param_comms    the call: all of a blocking one, the hand-over of an asynchronous one;
 *                           with collective, elements, dtype and group, as NCCL's
 *     commd:wait all_reduce the program waits for an asynchronous one
 *
 * Nothing is made unless a profiler runs: that costs one look at a list of callbacks.
 */
#include "profile.h"

#include <torch/version.h>

#include "plan.h"
#include "recorder.h"

#if TORCH_VERSION_MAJOR > 2 || (TORCH_VERSION_MAJOR == 2 && TORCH_VERSION_MINOR >= 13)
#include <torch/csrc/distributed/c10d/ParamCommsUtils.hpp>
#define COMMD_HAVE_PARAM_COMMS 1
#endif

namespace commd
{

bool profiled()
{
    return at::getStepCallbacksUnlessEmpty(at::RecordScope::USER_SCOPE).has_value();
}

#ifdef COMMD_HAVE_PARAM_COMMS
static int64_t elements(const std::vector<at::Tensor> &tensors)
{
    int64_t sum = 0;

    for (const at::Tensor &tensor : tensors)
        sum += tensor.numel();
    return sum;
}

static int64_t bytes(const std::vector<at::Tensor> &tensors)
{
    int64_t sum = 0;

    for (const at::Tensor &tensor : tensors)
        sum += static_cast<int64_t>(tensor.nbytes());
    return sum;
}
#endif

ParamComms::ParamComms(const RecordedGroup &group, const Plan &plan, int rank, int size, bool sync)
{
#ifdef COMMD_HAVE_PARAM_COMMS
    if (!range_.isActive())
        return;
    const auto &tensors = plan.inputs.empty() ? plan.outputs : plan.inputs;
    const auto dtype = tensors.empty() ? at::kByte : tensors[0].scalar_type();
    const auto [first, step] = group.line();
    auto info = std::make_shared<torch::ParamCommsDebugInfo>(
        group.names(), rank, std::string(plan.name), elements(plan.inputs), elements(plan.outputs),
        dtype, std::vector<int64_t>(), std::vector<int64_t>(), first, step, size, !sync);
    info_.emplace(c10::DebugInfoKind::PARAM_COMMS_INFO, info);
    const std::unordered_map<std::string, c10::IValue> more = {{"bytes", bytes(tensors)}};
    range_.before(at::kParamCommsCallName, &more);
#endif
}

WaitRange::WaitRange(const char *name)
{
    if (range_.isActive())
        range_.before(std::string("commd:wait ") + name);
}

} // namespace commd
