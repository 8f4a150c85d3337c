/* able.h - which operations the device path can do: all ranks must find the same, so it is a
 * function of the description and of the number of units ((node, GPU)) alone. */
#ifndef COMMD_ABLE_H
#define COMMD_ABLE_H

#include "shm/model/plan.h"

/* false: the operation goes the host path. */
bool gpu_able(const struct op_desc *desc, uint32_t nunits);

#endif
