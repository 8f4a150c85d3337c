#!/bin/bash
# What commd costs when nothing happens: memory and CPU of two linked nodes, each a commd and a
# commd-engine, over 10 s (or $1). Prints one line per process and the sums of a node.
#
# PSS counts a page that n processes share as 1/n, so sums of it are what the machine really gives.
set -euo pipefail
export LC_ALL=C

top=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")/../.." && pwd)
seconds=${1:-10}
dir=$(mktemp -d "${TMPDIR:-/tmp}/commd-idle.XXXXXX")

finish() {
    "$top/quickstart" down --dir "$dir" >/dev/null
    rm -rf "$dir"
}
trap finish EXIT

# CPU time of process $1 in clock ticks: fields 14 and 15, counted after the name.
ticks() {
    local fields
    fields=$(sed 's/.*) //' "/proc/$1/stat")
    # shellcheck disable=SC2086
    set -- $fields
    printf '%d\n' $((${12} + ${13}))
}

# memory PID NAME: kB
memory() {
    sed -n "s/^$2: *\([0-9]*\) kB/\1/p" "/proc/$1/smaps_rollup"
}

"$top/quickstart" up 2 --dir "$dir" >/dev/null
hz=$(getconf CLK_TCK)
for node in "$dir"/node*; do
    for program in commd engine; do
        pids+=("$(cat "$node/$program.pid")")
        names+=("${node##*/} $program")
    done
done
sleep 2 # what starting has left to do is not idling
for pid in "${pids[@]}"; do before+=("$(ticks "$pid")"); done
sleep "$seconds"
printf '%-16s %10s %10s %10s\n' process 'RSS [MB]' 'PSS [MB]' 'CPU [%]'
for ((i = 0; i < ${#pids[@]}; i++)); do
    used=$(($(ticks "${pids[i]}") - before[i]))
    awk -v name="${names[i]}" -v rss="$(memory "${pids[i]}" Rss)" \
        -v pss="$(memory "${pids[i]}" Pss)" \
        -v used="$used" -v hz="$hz" -v seconds="$seconds" \
        'BEGIN { printf "%-16s %10.1f %10.1f %10.2f\n", name, rss / 1024, pss / 1024,
            100 * used / hz / seconds }'
done | tee "$dir/rows"
awk '{ rss += $3; pss += $4; cpu += $5 }
    END { printf "%-16s %10.1f %10.1f %10.2f\n", "one node", rss / 2, pss / 2,
        cpu / 2 }' "$dir/rows"
