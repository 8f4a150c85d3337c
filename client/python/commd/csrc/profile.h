/* profile.h - what torch's profiler shows of a call. See profile.cpp. */
#pragma once

#include <optional>
#include <string>

#include <ATen/record_function.h>
#include <c10/util/ThreadLocalDebugInfo.h>

namespace commd
{

struct Plan;
class RecordedGroup;

/* Does somebody want ranges? */
bool profiled();

/* The range "record_param_comms" of the calling thread, from here to the end of the scope, with
 * the names under which torch's tools look for collective, elements, dtype and group. */
class ParamComms
{
  public:
    ParamComms(const RecordedGroup &group, const Plan &plan, int rank, int size, bool sync);

  private:
    std::optional<c10::DebugInfoGuard> info_;
    at::RecordFunction range_{at::RecordScope::FUNCTION};
};

/* The range "commd:wait NAME": the calling thread sleeps until an operation is done. */
class WaitRange
{
  public:
    explicit WaitRange(const char *name);

  private:
    at::RecordFunction range_{at::RecordScope::USER_SCOPE};
};

} // namespace commd
