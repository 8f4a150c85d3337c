#!/bin/sh
# compare.sh [OPTION...] - starts two nodes on loopback, runs compare.py on them, stops them.
# Options are compare.py's: --quick, --rounds N, --placements LIST, --json FILE. Open MPI takes
# part when it is installed (apt-get install openmpi-bin libopenmpi-dev).
set -eu
top=$(cd "$(dirname "$0")/../.." && pwd)
dir=$(mktemp -d "${TMPDIR:-/tmp}/commd-bench.XXXXXX")
end() {
    "$top/quickstart" down --dir "$dir" >/dev/null
    rm -rf "$dir"
}
trap end EXIT
trap 'exit 130' INT TERM
"$top/quickstart" up 2 --dir "$dir" >/dev/null
python3 "$top/tests/bench/compare.py" --nodes "$dir/node0/commd.sock,$dir/node1/commd.sock" "$@"
