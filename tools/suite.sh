# shellcheck shell=bash disable=SC2154
# suite.sh - ./quickstart test, bench and faults. Sourced.
#
# A part is one build of the tree with its `make check`, or one program. A part that fails does
# not keep the others from running. Test programs are counted by automake's own summaries; the
# last line is "N passed, M failed" whatever happened.

packages_test=(python3 xz-utils systemd zsh nftables)
# It brings a service that starts, which is nothing for a machine of somebody's; test_prometheus.py
# skips what needs it.
# Of ccache: a compiler's cache, for the builds that differ in little.
[ "${CI:-}" != true ] || packages_test+=(prometheus ccache)
# The CI has 90 minutes, and 30 are what it should take. An upgrade takes two, machines that boot
# take five: where so many are left.
ci_seconds=5400
ci_upgrade_before=$((ci_seconds - 480))
ci_booted_before=$((ci_seconds - 600))
packages_bench=(python3 python3-venv gcc iproute2 openmpi-bin libopenmpi-dev)
# Tests wait for much of their time, compilers do not.
check_jobs=$((2 * $(nproc)))
# Sum of automake's "# NAME: n" lines in log $1. They come twice if something failed: first with
# the logs of what failed, then as "Testsuite summary".
summed() {
    local log=$1 name sum=0 n in='1,$'
    shift
    grep -q '^Testsuite summary' "$log" && in='/^Testsuite summary/,/^# ERROR:/'
    for name; do
        for n in $(sed -n "$in s/^# $name: *\([0-9]*\)\$/\1/p" "$log"); do
            sum=$((sum + n))
        done
    done
    printf '%d\n' "$sum"
}

# What the parts that have ended counted: "PASSED FAILED", a line each.
counts=$logs/test-counts

# part NAME COMMAND...: in a subshell, without set -e.
part() {
    local name=$1 log begin=$EPOCHREALTIME rc=0 passed failed skipped
    shift
    log=$logs/test-${name//[^a-zA-Z0-9.-]/_}.log
    mkdir -p "$logs"
    printf '%-40s' "$name"
    ("$@") >"$log" 2>&1 </dev/null || rc=$?
    passed=$(summed "$log" PASS XFAIL)
    failed=$(summed "$log" FAIL XPASS ERROR)
    skipped=$(summed "$log" SKIP)
    if [ "$passed$failed$rc" = 000 ] && [ "$skipped" -gt 0 ]; then
        printf 'skipped: %s\n' "$(sed -n 's/^skipped: //p' "$log" | head -n 1)"
        return
    fi
    [ "$passed" -gt 0 ] || [ "$rc" -ne 0 ] || passed=1
    [ "$failed" -gt 0 ] || [ "$rc" -eq 0 ] || failed=1
    printf '%d %d\n' "$passed" "$failed" >>"$counts"
    printf '%8s s  %3d passed, %d failed, %d skipped\n' \
        "$(seconds_since "$begin")" "$passed" "$failed" "$skipped"
    [ "$failed" -eq 0 ] || show_part_failure "$name" "$log"
}

# What failed test $2 said, as automake cites it in log $1: the end of it.
failed_test_log() {
    printf '\nThe end of what %s said:\n\n' "$2"
    awk -v test="$2" '
        /^=+$/ && before ~ /^(FAIL|ERROR|XPASS): / && name == test { on = 1; next }
        /^(FAIL|ERROR|XPASS) / && $2 == test { on = 0 }
        on { print "    " $0 }
        { before = $0; name = $2 }' "$1" | tail -n 60 | cut -c 1-400
}

# The names of what failed, by the headings under which automake cites logs in log $1: a test may
# print "FAIL: " too.
failed_tests() {
    awk '/^=+$/ && length() == length(before) && before ~ /^(FAIL|ERROR|XPASS): [^ ]+$/ {
            sub(/^[A-Z]+: /, "", before)
            print before
        }
        { before = $0 }' "$1" | sort -u
}

show_part_failure() {
    local name=$1 log=$2 tests one
    mapfile -t tests < <(failed_tests "$log")
    show_failure "$name" "$log" "read the end of that log${tests:+; failed: ${tests[*]}}"
    for one in "${tests[@]}"; do failed_test_log "$log" "$one" >&2; done
}

# The longest tests in build folder $1: automake makes the log when a test begins, and .trs at the
# end.
longest_tests() {
    local log
    printf '\nThe longest tests, in seconds:\n'
    find "$1/tests" -name '*.trs' | while read -r log; do
        log=${log%.trs}
        printf '%s %s %s\n' "$(stat -c %.1W "$log.log")" "$(stat -c %.1Y "$log.trs")" "${log#"$1"/}"
    done | awk '$1 > 0 { printf "%8.1f  %s\n", $2 - $1, $3 }' | sort -rn | head -n 40
}

# check_in BUILD-FOLDER MAKE-ARGUMENT...: compiles, then tests.
check_in() {
    local where=$1 rc=0
    shift
    make -C "$where" -j"$(nproc)" check "$@" TESTS= || return
    make -C "$where" -j"$check_jobs" VERBOSE=1 check "$@" || rc=$?
    longest_tests "$where"
    return "$rc"
}

# configure_in DIRECTORY CONFIGURE-OPTION...
configure_in() {
    local where=$1
    shift
    mkdir -p "$where" && cd "$where" || return
    [ -e config.status ] || "$top/configure" --prefix="$where/install" "$@"
}

# configure_and_check DIRECTORY CONFIGURE-OPTION... [-- MAKE-ARGUMENT...]
configure_and_check() {
    local where=$1 options=()
    shift
    while [ $# -gt 0 ] && [ "$1" != -- ]; do options+=("$1"); shift; done
    [ $# -eq 0 ] || shift
    configure_in "$where" "${options[@]}" && check_in "$where" "$@"
}

run_torch_tests() {
    local dir port jobs rc=0 netns=
    dir=$(mktemp -d "${TMPDIR:-/tmp}/commd-torch.XXXXXX")
    trap demo_end EXIT
    start_cluster 2
    port=$(free_port)
    start_torchrun 0 "$port" "$dir/0.log" "$top/tests/integration/torch/torch_ops.py"
    start_torchrun 1 "$port" "$dir/1.log" "$top/tests/integration/torch/torch_ops.py"
    jobs=("${demo_jobs[@]}")
    wait "${jobs[0]}" || rc=1
    wait "${jobs[1]}" || rc=1
    PYTHONDONTWRITEBYTECODE=1 OMP_NUM_THREADS=1 GLOO_SOCKET_IFNAME=lo "$venv/bin/python" \
        "$top/tests/integration/torch/torch_ends.py" "$dir"/node[01]/commd.sock \
        >"$dir/ends.log" 2>&1 || rc=1
    cat "$dir"/node*/commd.log "$dir"/[01].log "$dir/ends.log" # a failure is shown by the end of it
    grep -q 'checks passed' "$dir/0.log" || rc=1
    exit "$rc"
}

# gloo is the yardstick, which does not change with commd: the CI has no time for it.
run_torch_suite() {
    local rounds=()
    if [ "${CI:-}" = true ]; then
        rounds=(--round commd-4 --round commd-8 --round commd-4-spawned --round gpu-4 --round gpu-8)
    fi
    COMMD_BUILD=$build "$venv/bin/python" "$top/tests/torch/conformance.py" \
        --logs "$logs/conformance" "${rounds[@]}"
}

run_torch_programs() {
    COMMD_BUILD=$build "$venv/bin/python" "$top/tests/torch/run_programs.py" --logs "$logs/programs"
}

run_torch_why() {
    COMMD_BUILD=$build "$venv/bin/python" "$top/tests/torch/test_why.py"
}

# The programs of commit $1 that an upgrade replaces, and libcommd, in $2/build. They lie in $2/src,
# so that a compiler's cache finds the paths of this commit's build there.
build_old() {
    [ ! -e "$2/.built" ] || return 0
    rm -rf "$2" && mkdir -p "$2/src/build" && ln -s src/build "$2/build" &&
        git -C "$top" archive "$1" | tar x -C "$2/src" &&
        autoreconf -fi "$2/src" && cd -P "$2/build" &&
        "$2/src/configure" --without-ucx --without-cuda --with-build-version=0.1.0~old &&
        make -j"$(nproc)" daemon/commd transport/commd-engine client/lib/libcommd.la &&
        touch "$2/.built"
}

# From commit $1, "" for the parent of this one.
run_upgrade() {
    local commit old
    if ! commit=$(git -C "$top" rev-parse --verify --quiet "${1:-HEAD^1}^{commit}"); then
        [ -z "$1" ] || fail "$1 is no commit of this checkout"
        printf 'skipped: the commit before this one is not here\n# SKIP: 1\n'
        return
    fi
    old=$build/upgrade/$commit
    build_old "$commit" "$old" || return
    printf 'from %s\n' "$(git -C "$top" log -1 --oneline "$commit")"
    COMMD_BUILD=$build python3 "$top/tests/upgrade/upgrade.py" "$old"
}

cmd_test_upgrade() {
    local log=$logs/upgrade.log
    torch_spec=none
    cmd_build
    (run_upgrade "$1") >"$log" 2>&1 </dev/null || {
        show_failure "upgrade" "$log" "read the end of that log"
        exit 1
    }
    sed -n '/^from /,$p; /^skipped: /p' "$log"
}

# With another release in an environment of its own, some 5 GB, which CI does not download.
cmd_test_torch() {
    if [ "${1:-}" = --torch ]; then
        [[ "${2:-}" =~ ^[0-9]+\.[0-9]+\.[0-9]+$ ]] ||
            usage_error "test torch: --torch needs a release, such as 2.5.1"
        venv=$top/.cache/torch-$2 objects=$build/torch-$2 torch_spec=torch==$2
        shift 2
    fi
    [ "$torch_spec" != none ] || fail "test torch needs torch, but TORCH_SPEC is none"
    cmd_build
    COMMD_BUILD=$build exec "$venv/bin/python" "$top/tests/torch/run_programs.py" "$@"
}

run_shellcheck() {
    cd "$top" && shellcheck -S warning -x quickstart .ci/run &&
        find tests systemd -name "*.sh" -print0 | xargs -0 shellcheck -S warning -x
}

# What git tracks and `make dist` has left out.
tarball_holds_all() {
    local missing
    cd "$top" || return
    git rev-parse --is-inside-work-tree >/dev/null || return 0 # not a checkout
    missing=$(comm -23 <(git ls-files | grep -v '\.gitignore$' | sort) \
        <(tar tf "$build"/commd-*.tar.xz | sed 's,^[^/]*/,,' | sort))
    [ -z "$missing" ] || printf 'not in the tarball (EXTRA_DIST?):\n%s\n' "$missing"
    [ -z "$missing" ]
}

# A compiler's cache, where there is one: builds without UCX, or with another, compile little anew.
use_ccache() {
    [ -d /usr/lib/ccache ] || return 0
    export PATH=/usr/lib/ccache:$PATH CCACHE_DIR=$top/.cache/ccache CCACHE_BASEDIR=$top \
        CCACHE_NOHASHDIR=true
}

# What is only a matter of numbers has its full length once, in make check.
small_numbers() {
    export COMMD_TEST_SHORT=1 COMMD_TEST_GROUPS=200 ORACLE_OPS=1500 SWARM_SEEDS=300 \
        GPU_STORM_SECONDS=1
}

begin_parts() {
    mkdir -p "$logs"
    : >"$counts"
}

# The last lines, and the exit code. $1: when all began.
end_parts() {
    printf 'all parts took %s s\n' "$(seconds_since "$1")"
    awk '{ passed += $1; failed += $2 }
        END { printf "%d passed, %d failed\n", passed, failed; exit failed > 0 }' "$counts"
}

# make check alone, with small numbers.
cmd_test_quick() {
    local begin=$EPOCHREALTIME
    torch_spec=none
    install_packages "${packages_test[@]}"
    cmd_build
    small_numbers
    begin_parts
    part "make check" check_in "$build"
    end_parts "$begin"
}

# The shared memory alone, and nothing else is compiled.
run_tsan() {
    local where=$top/build-tsan
    local tests="tests/unit/shm/test_board_threads tests/unit/shm/test_closer"
    configure_in "$where" --enable-sanitizers=thread --without-ucx --without-cuda &&
        make -j"$(nproc)" shm/proto/commd.pb-c.h daemon/state/state.pb-c.h &&
        make -j"$(nproc)" VERBOSE=1 check-TESTS check_LTLIBRARIES= \
            check_PROGRAMS="$tests tests/oracle/oracle" TESTS="$tests tests/oracle/check_threads.sh"
}

# The tests have run before: this is about what the tarball holds.
run_distcheck() {
    make -C "$build" -j"$(nproc)" VERBOSE=1 distcheck \
        TESTS="$1 tests/integration/test_service.py tests/integration/check_man.py \
            tests/check_rooms.py"
}

# Other builds: they compile for most of their time.
parts_of_builds() {
    local plain="tests/unit/transport/test_fabric tests/unit/client/test_collectives"
    plain+=" tests/unit/client/test_commctl"
    part "without UCX and libipsec-mb" configure_and_check "$top/build-plain" --without-ucx \
        --without-ipsec-mb --without-cuda \
        -- check_PROGRAMS="$plain" TESTS="$plain \
            tests/integration/test_collectives.py tests/integration/test_bad_input.py"
    part "make distcheck" run_distcheck "$plain"
    part "the tarball holds every file" tarball_holds_all
    [ "$torch_spec" = none ] || part "UCX 1.22 from PyPI" env COMMD_PYTHON="$venv/bin/python" \
        "$top/tests/integration/ucx_newer.sh" "$top/build-ucx"
    if command -v shellcheck >/dev/null; then part "shellcheck" run_shellcheck; fi
}

# They wait for much of their time: processes start, die and are missed.
parts_of_torch() {
    [ "$torch_spec" != none ] || return 0
    part "torch backend, 4 ranks on 2 nodes" run_torch_tests
    part "torch's own tests" run_torch_suite
    part "torch programs, two nodes and one" run_torch_programs
    part "commctl why of torch programs that hang" run_torch_why
}

# Two functions at a time. What the first says is shown when both have ended.
beside() {
    local said=$logs/test-beside.log
    set -m # a process group, which can be ended as a whole
    "$1" >"$said" 2>&1 </dev/null &
    beside_job=$!
    set +m
    trap 'kill -- -"$beside_job" 2>/dev/null || true' EXIT
    "$2"
    wait "$beside_job" || true
    trap - EXIT
    cat "$said"
}

cmd_test() {
    local begin=$EPOCHREALTIME
    install_packages "${packages_test[@]}"
    use_ccache
    cmd_build
    begin_parts
    part "make check" check_in "$build"
    small_numbers
    # the kernels are compiled once, above; no report says where variables are, which costs a fifth
    # of the compiler's time
    part "ASan and UBSan" configure_and_check "$top/build-asan" --enable-sanitizers \
        --without-cuda CFLAGS="-g -O1 -fno-var-tracking"
    part "TSan, shared memory" run_tsan
    beside parts_of_torch parts_of_builds
    if [ "${CI:-}" = true ] &&
        [ $((${EPOCHREALTIME%.*} - ${begin%.*})) -lt "$ci_upgrade_before" ]; then
        part "an upgrade of the commit before under jobs" run_upgrade ""
    fi
    if [ "${CI:-}" = true ]; then
        part "packages and Slurm on machines that boot" run_booted "$(seconds_since "$begin")"
    fi
    end_parts "$begin"
}

cmd_bench() {
    if [ "${1:-}" = gpu ]; then
        shift
        cmd_build
        cmd_bench_gpu "$@"
        return
    fi
    if [ "${1:-}" = encryption ]; then
        shift
        cmd_bench_encryption "$@"
        return
    fi
    cmd_build
    # a rival less is no reason to stop: the comparison says which, and why
    (install_packages "${packages_bench[@]}") || true
    python3 "$top/tests/bench/compare.py" "$@"
    # where there is a GPU: with --combine nothing is measured
    case " $* " in *" --combine "*) return ;; esac
    [ ! -e /dev/nvidiactl ] || cmd_bench_gpu
}

cmd_bench_encryption() {
    cmd_build
    (install_packages "${packages_bench[@]}" cmake) || true
    python3 "$top/tests/bench/encryption.py" "$@"
}

# What they are given, besides the programs that make builds.
gpu_programs() {
    make -C "$build" -j"$(nproc)" tests/gpu/gpu_check tests/bench/nccl_perf \
        tests/integration/lib/gpu_rank
}

gpu_python() {
    if [ -x "$venv/bin/python" ]; then echo "$venv/bin/python"; else echo python3; fi
}

# One folder for a machine with a GPU and little else.
cmd_bundle() {
    [ $# -le 1 ] || usage_error "bundle takes a directory"
    torch_spec=none
    install_packages patchelf binutils
    cmd_build
    step "programs that check GPUs" "see the end of the log" gpu_programs
    "$python" "$top/tools/gpu_bundle.py" "$build" "${1:-$build/gpu-bundle}"
}

cmd_bench_gpu() {
    step "programs that measure GPUs" "see the end of the log" gpu_programs
    "$(gpu_python)" "$top/tests/bench/gpu.py" --build "$build" "$@"
}

# All that only a GPU can show. Exit code 77: there is none.
cmd_test_gpu() {
    cmd_build
    step "programs that check GPUs" "see the end of the log" gpu_programs
    exec "$(gpu_python)" "$top/tests/gpu/check.py" --build "$build" "$@"
}

cmd_faults() {
    torch_spec=none
    { cmd_build && step "what has commd die in a step" "see the end of the log" \
        make -C "$build" tests/integration/lib/die_at.la; } >&2
    COMMD_BUILD=$build exec python3 "$top/tests/faults/run.py" "$@"
}
