#!/bin/sh
# commd decides and never carries data: it links neither UCX nor CUDA nor NCCL, so nothing in
# them can take it down or open it to attack. Asked of the linker's result and of what the
# loader makes of it. Runs in the build directory.
set -eu

program=${1:-daemon/commd}
if [ ! -x "$program" ]; then
    echo "FAIL: no $program: run make first, and this in the build directory"
    exit 1
fi
[ -x "$(dirname "$program")/.libs/commd" ] && program=$(dirname "$program")/.libs/commd

foreign='lib(ucp|uct|ucs|ucm|cuda|cudart|nccl|mpi|torch)[^a-z]'
needed=$(LC_ALL=C readelf -d "$program" | sed -n 's/.*(NEEDED).*\[\(.*\)\]/\1/p')
if [ -z "$needed" ]; then
    echo "FAIL: readelf shows no needed library of $program: the check has gone blind"
    exit 1
fi
if printf '%s\n' "$needed" | grep -E "^$foreign"; then
    echo "FAIL: $program is linked with the libraries above"
    exit 1
fi
if ldd "$program" | grep -E "[ 	]$foreign"; then
    echo "FAIL: $program loads the libraries above through others"
    exit 1
fi
# shellcheck disable=SC2086
echo "ok: $program needs only" $needed
