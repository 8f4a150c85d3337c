/* p2p.cpp - send, receive, and the monitored barrier that is made of them.
 *
 * c10d has no blocking forms: dist.send() is isend() and wait(). Tags are torch's own numbers; the
 * largest is ours.
 *
 * Monitored barrier: ranks report to rank 0, which waits for them for as long as its own limit
 * allows and then sends everybody its verdict, also to those who have not come: they learn on
 * arrival that the barrier has failed without them. Only rank 0 watches a clock, so that it is
 * rank 0 that names the missing ones; the others wait as long as the group's limit allows.
 * Messages carry the number of the barrier: what a failed one has left behind is skipped.
 */
#include "backend.h"
#include "python.h"

#include <cinttypes>
#include <limits>

#include <c10/util/Logging.h>
#include <c10/util/StringUtil.h>

namespace commd
{

namespace
{

using std::chrono::milliseconds;
using Clock = std::chrono::steady_clock;

constexpr int kOwnTag = std::numeric_limits<int32_t>::max();

struct Report {
    uint64_t round;
};

struct Verdict {
    uint64_t round;
    int32_t failed; /* how many ranks were missing */
    int32_t first;  /* the lowest of them */
};

commd_op p2p_op(commd_coll coll, void *buf, size_t bytes, int peer, int64_t timeout_ms)
{
    commd_op op{};

    op.size = sizeof(op);
    op.coll = coll;
    op.dtype = COMMD_U8;
    op.count = bytes;
    op.peer = peer;
    op.tag = kOwnTag;
    op.memory = COMMD_MEMORY_HOST;
    op.timeout_ms = timeout_ms;
    (coll == COMMD_SEND ? const_cast<void *&>(op.send) : op.recv) = buf;
    return op;
}

} // namespace

WorkPtr ProcessGroupCommd::point_to_point(Plan plan, commd_coll coll, Tensors &tensors, int peer,
                                          int tag)
{
    const at::Tensor &tensor = only_tensor(plan.name, tensors);

    if (peer != COMMD_ANY_SOURCE)
        check_root(plan.name, peer, size_);
    TORCH_CHECK(tag >= 0 && tag < kOwnTag, "commd: ", plan.name, ": tag ", tag, "; allowed: 0 to ",
                kOwnTag - 1);
    at::Tensor memory = coll == COMMD_SEND ? plan.readable(tensor) : plan.writable(tensor);
    commd_op &op = plan.add(coll, elements_to_move(tensor));
    if (coll == COMMD_SEND)
        op.send = memory.const_data_ptr();
    else
        op.recv = memory.data_ptr();
    op.peer = peer;
    op.tag = tag;
    plan.numbered = false;
    plan.inputs.push_back(tensor);
    plan.outputs.push_back(tensor);
    return execute(std::move(plan), false);
}

WorkPtr ProcessGroupCommd::send(Tensors &tensors, int dest, int tag)
{
    return point_to_point(Plan("send", "commd:send", c10d::OpType::SEND, c10d::kUnsetTimeout),
                          COMMD_SEND, tensors, dest, tag);
}

WorkPtr ProcessGroupCommd::recv(Tensors &tensors, int source, int tag)
{
    return point_to_point(Plan("recv", "commd:recv", c10d::OpType::RECV, c10d::kUnsetTimeout),
                          COMMD_RECV, tensors, source, tag);
}

WorkPtr ProcessGroupCommd::recvAnysource(Tensors &tensors, int tag)
{
    return point_to_point(
        Plan("recv", "commd:recvAnySource", c10d::OpType::RECVANYSOURCE, c10d::kUnsetTimeout),
        COMMD_RECV, tensors, COMMD_ANY_SOURCE, tag);
}

/* On rank 0. @came: who has. Throws if somebody is missing. */
void ProcessGroupCommd::report_missing(const std::vector<bool> &came, milliseconds timeout,
                                       bool wait_all_ranks)
{
    std::vector<int> present, missing;

    for (int r = 1; r < size_; r++)
        (came[r] ? present : missing).push_back(r);
    if (missing.empty())
        return;
    std::string who =
        wait_all_ranks || missing.size() == 1 ? c10::Join(", ", missing) : c10::str(missing[0]);
    std::rethrow_exception(backend_error(c10::str(
        "commd: [Rank 0]: ", wait_all_ranks ? "Ranks " : "Rank ", who,
        " failed to pass monitoredBarrier in ", timeout.count(),
        " ms. Rank 0 timed out in "
        "monitoredBarrier after ",
        timeout.count(), " ms. Missing: ", c10::Join(", ", missing), "; here: 0",
        present.empty() ? "" : ", ", c10::Join(", ", present), "; group ", group_->name())));
}

/* On the others: reports and waits. */
void ProcessGroupCommd::wait_for_verdict(uint64_t round)
{
    Group::Call call(*group_);
    Report report{round};
    Verdict verdict{};
    commd_op send = p2p_op(COMMD_SEND, &report, sizeof(report), 0, 0);
    commd_op recv = p2p_op(COMMD_RECV, &verdict, sizeof(verdict), 0, 0);
    std::string error;

    int r = commd_run(call.handle(), &send);
    while (!r && verdict.round != round)
        r = commd_run(call.handle(), &recv);
    if (r)
        error = commd_last_error()->message;
    if (r == COMMD_E_INTERRUPTED)
        raise_pending_any();
    if (!r && !verdict.failed)
        return;
    if (!r)
        error = c10::str(verdict.failed, " of ", size_,
                         " ranks did not come, the first of them "
                         "rank ",
                         verdict.first);
    std::rethrow_exception(backend_error(c10::str(
        "commd: Rank ", rank_,
        " successfully reached monitoredBarrier, but received errors while "
        "waiting for send/recv from rank 0. Please check rank 0 logs for faulty rank. Cause: ",
        error)));
}

void ProcessGroupCommd::monitoredBarrier(const c10d::BarrierOptions &opts, bool wait_all_ranks)
{
    milliseconds timeout = opts.timeout == c10d::kUnsetTimeout
                               ? timeout_
                               : checked_timeout("monitored_barrier", opts.timeout);
    // 0 is a look at who is there already, as torch's own tests have it
    const bool limited = timeout.count() > 0 || opts.timeout.count() == 0;
    auto deadline = Clock::now() + timeout;
    uint64_t round = monitored_.fetch_add(1) + 1;

    if (rank_ != 0)
        return wait_for_verdict(round);
    Group::Call call(*group_);
    std::vector<bool> came(size_);
    int left = size_ - 1;
    while (left > 0) {
        auto wait = std::chrono::duration_cast<milliseconds>(deadline - Clock::now());
        Report report{};
        commd_op recv = p2p_op(COMMD_RECV, &report, sizeof(report), COMMD_ANY_SOURCE,
                               limited ? std::max<int64_t>(wait.count(), 1) : -1);
        commd_work *work = nullptr;
        commd_status status{};
        int r = commd_start(call.handle(), &recv, nullptr, nullptr, &work);
        if (!r)
            r = commd_work_wait(work, -1);
        if (!r)
            commd_work_status(work, &status);
        commd_work_free(work);
        if (r == COMMD_E_TIMEOUT || (r && !group_->ours()))
            break;
        if (r)
            throw_last_error(r);
        if (report.round == round && !came[status.source]) {
            came[status.source] = true;
            left--;
        }
    }
    Verdict verdict{round, left, 0};
    for (int r = size_ - 1; r > 0; r--) {
        if (!came[r])
            verdict.first = r;
    }
    for (int r = 1; r < size_; r++) {
        commd_op send = p2p_op(COMMD_SEND, &verdict, sizeof(verdict), r, 0);
        int failed = commd_run(call.handle(), &send);
        if (failed && came[r])
            throw_last_error(failed);
    }
    report_missing(came, timeout, wait_all_ranks);
}

} // namespace commd
