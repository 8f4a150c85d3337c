/* p2p.cpp - send, receive, and the monitored barrier that is made of them: not there yet. Each
 * raises and says its name. */
#include "backend.h"

namespace commd {

namespace {

[[noreturn]] void not_yet(const char *op)
{
    TORCH_CHECK_NOT_IMPLEMENTED(false, "commd: ", op, " is not implemented yet");
}

} // namespace

WorkPtr ProcessGroupCommd::send(Tensors &, int, int)
{
    not_yet("send");
}

WorkPtr ProcessGroupCommd::recv(Tensors &, int, int)
{
    not_yet("recv");
}

WorkPtr ProcessGroupCommd::recvAnysource(Tensors &, int)
{
    not_yet("recv from any source");
}

void ProcessGroupCommd::monitoredBarrier(const c10d::BarrierOptions &, bool)
{
    not_yet("monitored_barrier");
}

} // namespace commd
