#!/bin/sh
# check_gpu.sh - random programs with buffers on a GPU, that of tests/fakecuda, whose streams
# dawdle; ORACLE_OPS=N for more.
FAKECUDA_DELAY_US=${FAKECUDA_DELAY_US:-100}
FAKECUDA_SEED=${ORACLE_SEED:-1}
export FAKECUDA_DELAY_US FAKECUDA_SEED
exec tests/oracle/oracle --gpu --seed "$FAKECUDA_SEED" ${ORACLE_OPS:+--ops "$ORACLE_OPS"}
