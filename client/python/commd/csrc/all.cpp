/* all.cpp - the whole extension as one unit: torch's headers cost far more than our code, so one
 * reading of them instead of fourteen makes the build five times as fast. What setup.py compiles.
 */
#include "backend.cpp"
#include "bind.cpp"
#include "callbacks.cpp"
#include "device.cpp"
#include "device_work.cpp"
#include "group.cpp"
#include "move.cpp"
#include "ops.cpp"
#include "p2p.cpp"
#include "plan.cpp"
#include "reduce.cpp"
#include "sparse.cpp"
#include "tensors.cpp"
#include "work.cpp"
