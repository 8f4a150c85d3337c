#!/bin/sh
# check_polled.sh - 20,000 operations of random programs, all ranks polled; ORACLE_OPS=N for more.
exec tests/oracle/oracle --seed "${ORACLE_SEED:-1}" ${ORACLE_OPS:+--ops "$ORACLE_OPS"}
