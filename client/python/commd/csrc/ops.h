/* ops.h - torch.ops.commd: collectives without torch.distributed in the path. See ops.cpp. */
#pragma once

#include <memory>
#include <string>

#include "group.h"

namespace commd
{

/* Makes @group known by torch's name for it. A later group of the same name replaces it. */
void register_group(const std::string &name, const std::shared_ptr<Group> &group);
/* Forgets @name if it still means @group. */
void unregister_group(const std::string &name, const std::shared_ptr<Group> &group);

} // namespace commd
