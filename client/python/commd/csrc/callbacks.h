/* callbacks.h - delivers the works whose futures may have callbacks. See callbacks.cpp. */
#pragma once

#include <chrono>
#include <functional>

namespace commd
{

class Group;

/* How deep in callbacks this thread is: 0 in a program's own threads, and in the library's. */
int callback_level();
/* Runs @job, on a thread that may wait, after all earlier jobs of this @group and @level. */
void call_back(const Group *group, int level, std::function<void()> job);
/* No further job is begun; those that run have @limit to end. */
void stop_callbacks(std::chrono::milliseconds limit);

} // namespace commd
