/* reconfigure.cpp - torch's own words for recovery, from 2.14 on: torch.distributed._reconfigure().
 *
 * The program says which processes make up the group now, by their handles, and a number that was
 * not used before. They join an ordinary group of commd, whose name is made of both, and leave the
 * one in which they were: any of them may have been in another one, or in none. Nobody else is
 * asked, so this needs no store, and no process that was there before.
 *
 * A handle is a random name of this process in this group; commd's daemons know where it is.
 */
#include "backend.h"
#include "python.h"

#include <algorithm>

#include <unistd.h>

#include <c10/util/StringUtil.h>
#include <c10/util/hash.h>

namespace commd
{

/* A program that reconfigures hears of a failure from the call itself, also from an asynchronous
 * one. */
void ProcessGroupCommd::check_stands()
{
    const int failure = group_->failure();

    if (failure) {
        std::rethrow_exception(backend_error(c10::str(
            "commd: group ", group_->name(), " is broken: ",
            failure == COMMD_E_TIMEOUT ? "an operation timed out" : commd_strerror(failure),
            "; torch.distributed._reconfigure() brings it back")));
    }
}

#ifdef C10D_BACKEND_HAS_RECONFIGURE

namespace
{

/* The members in the order of their ranks. */
std::vector<std::string> in_order(const c10d::ReconfigureOptions &opts)
{
    if (auto *list = std::get_if<std::vector<std::string>>(&opts.handles))
        return *list;
    const auto &unordered = std::get<std::unordered_set<std::string>>(opts.handles);
    std::vector<std::string> handles(unordered.begin(), unordered.end());
    std::sort(handles.begin(), handles.end()); /* the same on all of them */
    return handles;
}

std::string name_of(int64_t uuid, const std::vector<std::string> &handles)
{
    return c10::str("torch/reconfigure/", uuid, "/",
                    c10::sha1(c10::Join(" ", handles)).str().substr(0, 24));
}

} // namespace

c10d::ReconfigureHandle ProcessGroupCommd::get_reconfigure_handle() const
{
    return handle_;
}

WorkPtr ProcessGroupCommd::reconfigure(const c10d::ReconfigureOptions &opts)
{
    GilRelease no_gil;
    const std::vector<std::string> handles = in_order(opts);
    const auto me = std::find(handles.begin(), handles.end(), handle_);
    const auto limit = opts.timeout ? limit_of(*opts.timeout) : timeout_;

    TORCH_CHECK_VALUE(me != handles.end(), "commd: reconfigure: the handle of this process, ",
                      handle_, ", is not among the ", handles.size(), " that were given");
    TORCH_CHECK_VALUE(std::count(handles.begin(), handles.end(), handle_) == 1,
                      "commd: reconfigure: the handle of this process was given twice");
    TORCH_CHECK(uuids_.insert(opts.uuid).second, "commd: reconfigure: uuid ", opts.uuid,
                " was already used for this group; take a new one each time");
    const int rank = static_cast<int>(me - handles.begin());
    const int size = static_cast<int>(handles.size());
    abandonCoalescing();
    group_->reconfigure(name_of(opts.uuid, handles), rank, size, limit);
    become(rank, size);
    place({});
    group_->set_timeout(timeout_);
    if (connected_)
        eagerConnectSingleDevice(*connected_);

    auto work = c10::make_intrusive<WorkCommd>(
        group_, rank_, Plan("reconfigure", nullptr, c10d::OpType::UNKNOWN, c10d::kUnsetTimeout));
    work->settle(nullptr);
    return work;
}

#endif

} // namespace commd
