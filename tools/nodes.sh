# shellcheck shell=bash disable=SC2015,SC2154
# nodes.sh - ./quickstart up, restart and down: several nodes on one machine. Sourced.
#
# A node is a directory D/nodeI with its configuration, socket, pid files and log; D/cluster.key is
# shared. Who runs is known from /proc, not believed from a pid file: a process is ours if its
# command line names our configuration. down can be called at any time, also after a crash.
#
# What is started is a keeper, which starts commd, and starts it again when it dies: commd.pid is
# commd's, keeper.pid the keeper's. Who is told to end is the keeper, which tells commd; without a
# keeper, that has been killed, it is commd.
#
# Ports: each node takes a block of 16 (one for commd, the rest for the engine) below the range
# that the kernel gives to outgoing connections. Blocks in use are seen in /proc/net/tcp, those that
# tests/integration/lib/cluster.py has reserved in /proc/net/udp; the search starts at a place that
# depends on D, so that clusters that start at one time do not meet.

PORT_FIRST=10240
PORT_BLOCKS=1376 # up to 32256
PORT_BLOCK=16
UP_SECONDS=60
DOWN_SECONDS=5
SOCKET_PATH_MAX=107
NODES_MAX=64

# pid of node $1 (a directory) in its file $2, if that process runs.
node_process() {
    local pid
    pid=$(cat "$1/$2" 2>/dev/null) || return 1
    [[ $pid =~ ^[0-9]+$ ]] || return 1
    cat "/proc/$pid/cmdline" 2>/dev/null | tr '\0' '\n' | grep -qxF -- "$1/commd.yaml" || return 1
    printf '%s\n' "$pid"
}

# pid of node $1 (a directory) if its commd runs.
node_pid() {
    node_process "$1" commd.pid
}

engine_pid() {
    local pid
    pid=$(cat "$1/engine.pid" 2>/dev/null) || return 1
    [[ $pid =~ ^[0-9]+$ ]] && [ "$(cat "/proc/$pid/comm" 2>/dev/null)" = commd-engine ] || return 1
    printf '%s\n' "$pid"
}

# ---- ports and configuration ------------------------------------------------------------------

# Local ports that somebody has, one per line.
used_ports() {
    local address rest
    cat /proc/net/tcp /proc/net/tcp6 /proc/net/udp 2>/dev/null | while read -r _ address rest; do
        address=${address##*:}
        [[ $address =~ ^[0-9A-F]{4}$ ]] && printf '%d\n' "0x$address"
    done
}

# Sets ports[]: the first port of a free block for each of $1 nodes.
find_ports() {
    local n=$1 used port block start tries k
    declare -A used=()
    for port in $(used_ports); do used[$port]=1; done
    start=$(cksum <<<"$dir $$")
    start=$((${start%% *} % PORT_BLOCKS))
    ports=()
    for ((tries = 0; tries < PORT_BLOCKS && ${#ports[@]} < n; tries++)); do
        block=$((PORT_FIRST + (start + tries) % PORT_BLOCKS * PORT_BLOCK))
        for ((k = 0; k < PORT_BLOCK; k++)); do
            [ -z "${used[$((block + k))]:-}" ] || continue 2
        done
        ports+=("$block")
    done
    [ ${#ports[@]} -eq "$n" ] || fail "not enough free TCP ports for $n nodes"
}

node_address() {
    if [ -n "$netns" ]; then printf '10.77.0.%d\n' $(($1 + 1)); else printf '127.0.0.1\n'; fi
}

# "key: value" lines for node $1 of $2.
node_yaml() {
    local i=$1 n=$2 home=$dir/node$1 k
    printf 'cluster:\n  name: local\n  node: node%d\n  key_file: "%s"\n  nodes:\n' \
        "$i" "$dir/cluster.key"
    for ((k = 0; k < n; k++)); do
        printf '    - {name: node%d, address: %s, port: %d}\n' \
            "$k" "$(node_address "$k")" "${ports[k]}"
    done
    printf 'listen:\n  socket: "%s"\n  pid_file: "%s"\n' "$home/commd.sock" "$home/commd.pid"
    printf 'transport:\n  port_range: %d-%d\n' $((ports[i] + 1)) $((ports[i] + PORT_BLOCK - 1))
    printf '  engine_pid_file: "%s"\n' "$home/engine.pid"
    [ -z "$netns" ] || printf '  device: veth0\n'
}

make_key() {
    [ -e "$dir/cluster.key" ] && return
    (umask 077 && od -An -v -tx1 -N32 /dev/urandom | tr -d ' \n' >"$dir/cluster.key")
}

# ---- network namespaces -----------------------------------------------------------------------

netns_make() {
    local n=$1 i
    [ "$(id -u)" -eq 0 ] || fail "--netns needs root"
    command -v ip >/dev/null || fail "--netns needs ip: apt-get install iproute2"
    for ((i = 0; i < n; i++)); do
        [ ! -e "/run/netns/commd-$i" ] ||
            fail "the network namespace commd-$i exists: another cluster with --netns is up"
    done
    printf '%d\n' "$n" >"$dir/netns"
    ip link add commd-br type bridge
    ip link set commd-br up
    for ((i = 0; i < n; i++)); do
        ip netns add "commd-$i"
        ip link add "commd-veth$i" type veth peer name veth0 netns "commd-$i"
        ip link set "commd-veth$i" master commd-br up
        ip -n "commd-$i" addr add "10.77.0.$((i + 1))/24" dev veth0
        ip -n "commd-$i" link set lo up
        ip -n "commd-$i" link set veth0 up
    done
    for ((i = 0; i < n; i++)); do # the engine refuses a device without a link
        until ip -n "commd-$i" link show veth0 | grep -q 'state UP'; do sleep 0.02; done
    done
}

netns_remove() {
    local n i
    n=$(cat "$dir/netns" 2>/dev/null) || return 0
    for ((i = 0; i < n; i++)); do
        ip netns del "commd-$i" 2>/dev/null || true
        ip link del "commd-veth$i" 2>/dev/null || true
    done
    ip link del commd-br 2>/dev/null || true
    rm -f "$dir/netns"
}

# ---- up ------------------------------------------------------------------------------------------

# Sets $enter to what is put before a command that runs where node $1 does.
enter_node() {
    enter=()
    # not nsenter: UCX looks for devices in /sys, which ip mounts anew for the namespace
    [ -z "$netns" ] || enter=(ip netns exec "commd-$1")
}

start_node() {
    local i=$1 home=$dir/node$1 enter
    enter_node "$i"
    env -u NOTIFY_SOCKET -u JOURNAL_STREAM -u LISTEN_FDS "${enter[@]}" setsid \
        "$prefix/sbin/commd" --keep --config "$home/commd.yaml" </dev/null \
        >>"$home/commd.log" 2>&1 &
    started[i]=$!
    printf '%d\n' "$!" >"$home/keeper.pid"
}

# Does node $1 see all of $2 nodes up?
node_sees_all() {
    local seen
    seen=$("$prefix/bin/commctl" --socket "$dir/node$1/commd.sock" --timeout 1 --json nodes \
        2>/dev/null | grep -cE '"state": *"(self|up)"') || true
    [ "$seen" = "$2" ]
}

say_end() { # NODE WHY
    {
        printf 'quickstart: node%d %s. The end of %s:\n\n' "$1" "$2" "$dir/node$1/commd.log"
        tail -n 20 "$dir/node$1/commd.log" | sed 's/^/    /'
    } >&2
}

give_up() {
    say_end "$@"
    kill "${started[@]}" 2>/dev/null || true
    stop_nodes
    exit 1
}

wait_until_linked() {
    local n=$1 i limit=$((SECONDS + UP_SECONDS))
    for ((i = 0; i < n; i++)); do
        until node_sees_all "$i" "$n"; do
            kill -0 "${started[i]}" 2>/dev/null || give_up "$i" "ended"
            [ "$SECONDS" -lt "$limit" ] || give_up "$i" "does not see all nodes after $UP_SECONDS s"
            sleep 0.05
        done
    done
}

# Ends the command if some nodes of $dir run already.
check_not_up() {
    local n=$1 home alive=0
    for home in "$dir"/node*/; do
        home=${home%/}
        node_process "$home" keeper.pid >/dev/null || node_pid "$home" >/dev/null || continue
        alive=$((alive + 1))
    done
    [ "$alive" -ne 0 ] || return 0
    if [ "$alive" -eq "$n" ]; then
        printf 'already up: %d nodes in %s\n' "$n" "$dir"
        exit 0
    fi
    fail "$alive nodes are up in $dir, and you ask for $n: ./quickstart down --dir $dir"
}

# Starts $1 nodes in $dir and returns when all of them see each other.
start_cluster() {
    local i n=$1 ports started=()
    i=$dir/node$((n - 1))/commd.sock
    [ ${#i} -le "$SOCKET_PATH_MAX" ] ||
        fail "$i: ${#i} bytes, but the path of a socket may have $SOCKET_PATH_MAX: a shorter --dir"
    case $dir in *[\"\\]*) fail "$dir: quotes and backslashes in a path are not supported" ;; esac
    stop_nodes # what a crash has left
    rm -rf "$dir"/node*
    mkdir -p "$dir"
    make_key
    find_ports "$n"
    [ -z "$netns" ] || netns_make "$n"
    for ((i = 0; i < n; i++)); do
        mkdir -p "$dir/node$i"
        node_yaml "$i" "$n" >"$dir/node$i/commd.yaml"
        start_node "$i"
    done
    wait_until_linked "$n"
    disown "${started[@]}"
    for ((i = 0; i < n; i++)); do
        printf 'node%d  %s:%d  %s\n' \
            "$i" "$(node_address "$i")" "${ports[i]}" "$dir/node$i/commd.sock"
    done
}

cmd_up() {
    local n
    parse_dir "$@"
    n=${args[0]:-}
    [ ${#args[@]} -eq 1 ] && [[ $n =~ ^[1-9][0-9]*$ ]] && [ "$n" -le "$NODES_MAX" ] ||
        usage_error "up needs the number of nodes, 1 to $NODES_MAX"
    check_not_up "$n"
    [ -x "$prefix/sbin/commd" ] || cmd_build
    start_cluster "$n"
}

# ---- down ----------------------------------------------------------------------------------------

alive() {
    # a zombie has ended: whoever started it has not asked yet
    [ -e "/proc/$1" ] && ! grep -q '^State:.Z' "/proc/$1/status" 2>/dev/null
}

# Waits up to DOWN_SECONDS for the processes "$@" to end, then kills them.
wait_or_kill() {
    local pid limit=$((SECONDS + DOWN_SECONDS + 1))
    for pid; do
        while alive "$pid" && [ "$SECONDS" -lt "$limit" ]; do sleep 0.02; done
        if alive "$pid"; then
            printf 'process %d does not end on SIGTERM: killed\n' "$pid" >&2
            kill -KILL "$pid" 2>/dev/null || true
            while alive "$pid"; do sleep 0.02; done
        fi
    done
}

# Sets stopped: how many nodes ran.
stop_nodes() {
    local home pid keepers=() commds=() engines=() orphans=()
    for home in "$dir"/node*/; do
        home=${home%/}
        if pid=$(engine_pid "$home"); then engines+=("$pid"); fi
        if pid=$(node_process "$home" keeper.pid); then
            keepers+=("$pid")
            if pid=$(node_pid "$home"); then commds+=("$pid"); fi
        elif pid=$(node_pid "$home"); then
            orphans+=("$pid")
        fi
    done
    stopped=$((${#keepers[@]} + ${#orphans[@]}))
    [ "$stopped" -eq 0 ] || kill -TERM "${keepers[@]}" "${orphans[@]}" 2>/dev/null || true
    wait_or_kill "${keepers[@]}" "${orphans[@]}"
    wait_or_kill "${commds[@]}" # a commd ends by itself once its keeper is gone
    wait_or_kill "${engines[@]}" # and so does an engine
    rm -f "$dir"/node*/{commd.sock,commd.pid,engine.pid,keeper.pid}
    netns_remove
}

# ---- restart -------------------------------------------------------------------------------------

# One that was just started may not have its own command line yet.
keeper_runs() {
    if [ -n "${started[$1]:-}" ]; then
        alive "${started[$1]}"
    else
        node_process "$2" keeper.pid >/dev/null
    fi
}

# Waits until a commd of node $1 other than $2 ("" for any) answers.
wait_until_back() {
    local i=$1 old=$2 home=$dir/node$1 limit=$((SECONDS + UP_SECONDS)) pid
    until pid=$(node_pid "$home") && [ "$pid" != "$old" ] &&
        "$prefix/bin/commctl" --socket "$home/commd.sock" --timeout 1 status >/dev/null 2>&1; do
        keeper_runs "$i" "$home" || give_up_again "$i" "ended"
        [ "$SECONDS" -lt "$limit" ] || give_up_again "$i" "does not answer after $UP_SECONDS s"
        sleep 0.01
    done
    printf 'node%d  pid %d  %s\n' "$i" "$pid" "$home/commd.sock"
}

give_up_again() {
    say_end "$@"
    exit 1
}

cmd_restart() {
    local i old home signal=USR1 words=() word started=() enter netns=
    for word; do
        if [ "$word" = --kill ]; then signal=KILL; else words+=("$word"); fi
    done
    parse_dir "${words[@]}"
    i=${args[0]:-}
    [ ${#args[@]} -eq 1 ] && [[ $i =~ ^[0-9]+$ ]] && [ -z "$netns" ] ||
        usage_error "restart takes the number of a node, --kill and --dir D"
    home=$dir/node$i
    [ -d "$home" ] || fail "$dir has no node$i: ./quickstart up N --dir $dir"
    [ ! -e "$dir/netns" ] || netns=1
    enter_node "$i"
    "${enter[@]}" "$prefix/sbin/commd" --config "$home/commd.yaml" --check-config >/dev/null ||
        fail "node$i is not restarted: the configuration, $home/commd.yaml, is wrong"
    old=$(node_pid "$home") || old=
    [ -z "$old" ] || kill -"$signal" "$old" 2>/dev/null || true
    if ! node_process "$home" keeper.pid >/dev/null; then
        [ -z "$old" ] || wait_or_kill "$old"
        start_node "$i"
        disown "${started[@]}"
    fi
    wait_until_back "$i" "$old"
}

cmd_down() {
    local stopped
    parse_dir "$@"
    [ ${#args[@]} -eq 0 ] && [ -z "$netns" ] || usage_error "down takes only --dir D"
    stop_nodes
    if [ "$stopped" -eq 0 ]; then
        printf 'nothing was up in %s\n' "$dir"
    else
        printf 'stopped %d nodes; their logs stay in %s\n' "$stopped" "$dir"
    fi
}
