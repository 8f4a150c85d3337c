#!/bin/sh
# mutants.sh - proves that the simulator sees: builds the core with one rule broken at a time
# (-DCORE_MUTANT=N) and expects swarm or test_join to fail on each.
#
#   tests/sim/mutants.sh [N...]
# Variables: CC, CFLAGS, SEEDS (500)
set -eu

top=$(dirname "$0")/../..
cc=${CC:-cc}
seeds=${SEEDS:-500}
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT INT TERM

what() {
    case $1 in
    0) echo "nothing (must pass)" ;;
    1) echo "joins are not asked again when their home changes" ;;
    2) echo "a duplicate rank replaces the first" ;;
    3) echo "participants are not told about a rank that left" ;;
    4) echo "an answer about an engine that is gone counts for the new one" ;;
    5) echo "SYNC is not answered" ;;
    6) echo "the home keeps the joins of a lost node" ;;
    7) echo "a COMMIT that comes twice is taken twice" ;;
    8) echo "groups survive the loss of a node" ;;
    9) echo "the home is not told that a join is withdrawn" ;;
    10) echo "a group opens before all participants agreed" ;;
    11) echo "BROKEN does not withdraw a group that is not open" ;;
    12) echo "a join that ran out of time trusts its home to answer" ;;
    esac
}

objects() { # $1: flags, $2: where; sources follow
    flags=$1 out=$2
    shift 2
    mkdir -p "$out"
    for f; do
        # shellcheck disable=SC2086
        $cc -std=gnu11 -D_GNU_SOURCE -O1 -w ${CFLAGS-} $flags -I"$top" -c "$f" \
            -o "$out/$(basename "$f" .c).o"
    done
}

sims="$top/tests/sim/sim.c $top/tests/sim/sim_net.c $top/tests/sim/sim_edge.c
      $top/tests/sim/sim_engine.c $top/tests/sim/sim_check.c"
# shellcheck disable=SC2086
objects "" "$dir/sim" $sims
objects "" "$dir" "$top/tests/sim/swarm.c" "$top/tests/sim/test_join.c"
# what no mutant changes
objects "" "$dir/same" "$top"/daemon/core/core*.c

bad=0
# shellcheck disable=SC2048,SC2086 # a list of numbers
for n in ${*:-0 1 2 3 4 5 6 7 8 9 10 11 12}; do
    rm -rf "$dir/core"
    cp -r "$dir/same" "$dir/core"
    # shellcheck disable=SC2046
    [ "$n" = 0 ] || objects "-DCORE_MUTANT=$n" "$dir/core" \
        $(grep -lE "CORE_MUTANT [!=]= $n( |\$)" "$top"/daemon/core/core*.c)
    $cc ${CFLAGS-} -o "$dir/swarm" "$dir"/swarm.o "$dir"/sim/*.o "$dir"/core/*.o
    $cc ${CFLAGS-} -o "$dir/test_join" "$dir"/test_join.o "$dir"/sim/*.o "$dir"/core/*.o -lcmocka
    if ! "$dir/test_join" >"$dir/out" 2>&1; then
        verdict="test_join: $(sed -n 's/^\[  FAILED  \] \([a-z_]*\)$/\1/p' "$dir/out" | head -n 1)"
        [ "$verdict" != "test_join: " ] ||
            verdict="test_join: $(grep -m1 -o 'VIOLATION.*' "$dir/out" || tail -n 1 "$dir/out")"
    elif ! "$dir/swarm" --seeds "$seeds" >"$dir/out" 2>&1; then
        verdict="swarm: $(grep -m1 -o 'VIOLATION.*' "$dir/out" || tail -n 1 "$dir/out")"
    else
        verdict=survives
    fi
    printf 'mutant %2d  %-62s %s\n' "$n" "$(what "$n")" "$verdict"
    if [ "$n" = 0 ]; then
        [ "$verdict" = survives ] || bad=1
    else
        [ "$verdict" != survives ] || bad=1
    fi
done
exit $bad
