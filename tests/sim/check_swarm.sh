#!/bin/sh
# check_swarm.sh - 2,000 random runs of the control core in make check.
exec tests/sim/swarm --seed "${SWARM_SEED:-1}" --seeds "${SWARM_SEEDS:-2000}"
