#!/bin/sh
# check_recover.sh - 1,000 random runs of recoveries in make check.
exec tests/sim/recover --seed "${SWARM_SEED:-1}" --seeds "${SWARM_SEEDS:-1000}"
