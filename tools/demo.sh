# shellcheck shell=bash disable=SC2154
# demo.sh - ./quickstart demo: trains one classifier three times, with the same data, batches and
# first parameters: by 2 ranks on each of two nodes through commd, the same through gloo, and in
# one process. Sourced.
#
# Everything it starts is in $demo_jobs or under $dir, so that demo_end() can take it away at
# any moment; what is left after that is looked for in /proc, not assumed.

demo_jobs=()
DEMO_EPOCHS=20

# Processes of the cluster in $dir: its daemons, and whoever names it in command line or
# environment. Other clusters of this machine are not ours to count.
demo_processes() {
    local home pid
    for home in "$dir"/node*/; do
        node_pid "${home%/}" || true
        engine_pid "${home%/}" || true
    done
    for pid in /proc/[0-9]*; do
        if cat "$pid/cmdline" "$pid/environ" 2>/dev/null | tr '\0' '\n' | grep -qF -- "$dir/"; then
            printf '%s\n' "${pid#/proc/}"
        fi
    done
}

shared_memory() {
    find /dev/shm -mindepth 1 2>/dev/null | sort
}

# What is still there of the processes $1, beside the shared memory $2 that was there before. A
# board is a memory file, which lives as long as some process has it open or mapped.
leftovers() {
    local pid
    for pid in $1 $(demo_processes); do
        if alive "$pid"; then
            printf 'process %d: %s\n' "$pid" "$(tr '\0' ' ' <"/proc/$pid/cmdline")"
        fi
    done
    comm -13 <(printf '%s\n' "$2") <(shared_memory) | sed 's/^/shared memory /'
    grep -F -- "$dir/" /proc/net/unix | sed 's/^/socket /' || true
}

demo_end() {
    local job
    trap - EXIT INT TERM
    for job in "${demo_jobs[@]}"; do kill -TERM -- "-$job" 2>/dev/null || true; done
    for job in "${demo_jobs[@]}"; do wait_or_kill "$job"; done
    stop_nodes
    rm -rf "$dir"
}

free_port() {
    local ports n=1
    find_ports "$n"
    printf '%d\n' "${ports[0]}"
}

# start_torchrun NODE PORT LOG PROGRAM...: 2 ranks on a node of the cluster in $dir; the master of
# all listens on PORT.
start_torchrun() {
    local node=$1 port=$2 log=$3
    shift 3
    : >"$log" # now: tail and watch_status may look before the child has opened it
    COMMD_SOCKET=$dir/node$node/commd.sock OMP_NUM_THREADS=1 GLOO_SOCKET_IFNAME=lo \
        setsid "$venv/bin/torchrun" --nnodes=2 --node-rank="$node" --nproc-per-node=2 \
        --master-addr=127.0.0.1 --master-port="$port" "$@" >"$log" 2>&1 </dev/null &
    demo_jobs+=($!)
}

# Waits for the job $1, which writes the log $2. Is the file $3 there, if given, then it has done
# its work, and how it ended does not matter: with torch 2.13 a rank of gloo may abort while it
# exits ("terminate called without an active exception", seen on a loaded machine).
finish_job() {
    local job=$1 log=$2 result=${3:-}
    wait "$job" && return
    if [ -n "$result" ] && [ -s "$result" ]; then
        printf '(trained, but did not end well: %s)\n' \
            "$(grep -m 1 -oE '^terminate.*|Signal [0-9]+ .*' "$log" ||
                echo "its log does not say why")"
        return
    fi
    cp "$log" "$logs/" # $dir will be gone
    show_failure "training" "$logs/${log##*/}" \
        "./quickstart up 2, and look at commctl status and the nodes' logs"
    tail -n 5 "$dir"/node*/commd.log >&2
    exit 1
}

# Keeps what commctl says once the first epoch is over.
watch_status() {
    local log=$1
    until grep -q '^epoch' "$log" 2>/dev/null; do sleep 0.05; done
    "$prefix/bin/commctl" --socket "$dir/node0/commd.sock" status
    echo
    "$prefix/bin/commctl" --socket "$dir/node0/commd.sock" groups
}

train_on_two_nodes() {
    local backend=$1 port first=${#demo_jobs[@]} watcher program result=
    shift
    program=("$top/client/python/examples/digits_ddp.py" --backend "$backend"
        --epochs "$DEMO_EPOCHS")
    port=$(free_port)
    start_torchrun 0 "$port" "$dir/$backend.0.log" "${program[@]}" "$@"
    start_torchrun 1 "$port" "$dir/$backend.1.log" "${program[@]}"
    if [ "$backend" = commd ]; then
        watch_status "$dir/commd.0.log" >"$dir/status" 2>&1 &
        watcher=$!
        # in the background, and waited for, so that a signal is acted upon at once
        tail -n +1 -s 0.1 -f --pid="${demo_jobs[first]}" "$dir/commd.0.log" |
            grep --line-buffered '^epoch' &
        wait $! || true
    fi
    [ "$backend" = commd ] || result=$dir/$backend.json # others are only there to be compared with
    finish_job "${demo_jobs[first]}" "$dir/$backend.0.log" "$result"
    finish_job "${demo_jobs[first + 1]}" "$dir/$backend.1.log" "$result"
    [ "$backend" != commd ] || wait "$watcher"
}

train_alone() {
    OMP_NUM_THREADS=1 setsid "$venv/bin/python" "$top/client/python/examples/digits_ddp.py" \
        --single --epochs "$DEMO_EPOCHS" --json-out "$dir/single.json" \
        >"$dir/single.log" 2>&1 </dev/null &
    demo_jobs+=($!)
    finish_job $! "$dir/single.log"
}

cmd_demo() {
    [ "$torch_spec" != none ] || fail "the demo needs torch, but TORCH_SPEC is none"
    local begin=$EPOCHREALTIME memory processes left
    dir=$build/no-demo-yet netns=
    cmd_build
    dir=$(mktemp -d "${TMPDIR:-/tmp}/commd-demo.XXXXXX")
    trap demo_end EXIT
    trap 'echo; echo "stopping" >&2; exit 130' INT TERM
    memory=$(shared_memory)

    printf '\ntwo nodes on this machine, each a commd and a commd-engine:\n'
    start_cluster 2
    printf '\n4 ranks, 2 on each node, backend="commd":\n'
    train_on_two_nodes commd --save "$dir/model.pt" --json-out "$dir/commd.json"
    printf '\nmeanwhile, "commctl status" and "commctl groups" on node0:\n\n'
    sed 's/^/    /' "$dir/status"
    printf '\nthe same with backend="gloo" ...\n'
    train_on_two_nodes gloo --json-out "$dir/gloo.json"
    printf 'the same in one process ...\n\n'
    train_alone
    local verdict=0
    "$venv/bin/python" "$top/tools/demo_table.py" "$dir/commd.json" "$dir/gloo.json" \
        "$dir/single.json" || verdict=1
    grep '^saved' "$dir/commd.0.log" | sed "s|$dir/||"

    processes=$(demo_processes)
    demo_end
    left=$(leftovers "$processes" "$memory")
    if [ -n "$left" ]; then
        printf 'left behind:\n%s\n' "$left"
        verdict=1
    else
        printf 'nothing is left: no process, no socket, no shared memory\n'
    fi
    printf 'all of it took %s s\n' "$(seconds_since "$begin")"
    [ "$verdict" -eq 0 ] || fail "the results above are not as they should be"
}
