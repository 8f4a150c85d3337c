#!/bin/sh
# check_threads.sh - random programs with a thread for each rank; ORACLE_OPS=N for more.
exec tests/oracle/oracle --threads --seed "${ORACLE_SEED:-1}" ${ORACLE_OPS:+--ops "$ORACLE_OPS"}
