#!/bin/sh
# The generated units are valid and stay as closed as they were: systemd-analyze verify without a
# complaint, systemd-analyze security at 1.5 or better. Runs in the build directory.
set -eu

limit=15 # tenths

if ! command -v systemd-analyze >/dev/null; then
    echo "SKIP: systemd-analyze is not installed"
    exit 77
fi
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT

check_unit() { # $1: the unit, $2: its program
    name=$(basename "$1")
    if [ ! -f "$1" ]; then
        echo "FAIL: no $1: run make first, and this in the build directory"
        exit 1
    fi
    if grep -n '@[a-z]*dir@' "$1"; then
        echo "FAIL: the lines above were not substituted"
        exit 1
    fi
    # What runs before the program may fail without RestartPreventExitStatus= hearing of it: systemd
    # would try again and again with a key or a configuration that is wrong.
    if grep -q '^RestartPreventExitStatus=' "$1" && grep -n '^ExecStartPre=' "$1"; then
        echo "FAIL: RestartPreventExitStatus= says nothing about the line above"
        exit 1
    fi
    # verify wants each program to exist and be executable; before "make install" ours is not there
    path=$(sed -n "s|^ExecStart=\\(.*\\)/$2 .*|\\1|p" "$1")
    ln -sf /bin/true "$dir/$2"
    ln -sf /bin/true "$dir/commctl"
    sed -e "s|$path/$2 |$dir/$2 |" -e "s|^ExecReload=.*/commctl |ExecReload=$dir/commctl |" \
        "$1" >"$dir/$name"

    # --man=no: the manuals are not installed either. Complaints about units of this machine, which
    # verify loads as dependencies, are not ours: only lines with our unit's name count.
    if ! systemd-analyze verify --man=no "$dir/$name" >"$dir/out" 2>&1 ||
        grep -q 'commd' "$dir/out"; then
        cat "$dir/out"
        echo "FAIL: systemd-analyze verify"
        exit 1
    fi

    # The proof that the lines above would notice: a misspelt directive is a complaint.
    sed 's|^NoNewPrivileges=|NoNewPrivilege=|' "$dir/$name" >"$dir/wrong-$name"
    systemd-analyze verify --man=no "$dir/wrong-$name" >"$dir/out" 2>&1 || :
    if ! grep -q 'NoNewPrivilege' "$dir/out"; then
        cat "$dir/out"
        echo "FAIL: systemd-analyze verify accepts a misspelt directive"
        exit 1
    fi

    if ! systemd-analyze security --no-pager --offline=true --threshold="$limit" \
        "$dir/$name" >"$dir/out" 2>&1; then
        cat "$dir/out"
        echo "FAIL: systemd-analyze security: above $limit tenths"
        exit 1
    fi
    grep 'Overall exposure' "$dir/out"
}

cp "${srcdir:-$(dirname "$0")/../..}/systemd/commd-engine.socket" "$dir" # the services want it
ln -s /bin/true "$dir/commd-engine"
sed "s|^ExecStart=.*/commd-engine|ExecStart=$dir/commd-engine|" systemd/commd-engine.service \
    >"$dir/commd-engine.service"
cp "${srcdir:-$(dirname "$0")/../..}/systemd/commd-gpu.socket" "$dir"
ln -s /bin/true "$dir/commd-gpu"
sed "s|^ExecStart=.*/commd-gpu|ExecStart=$dir/commd-gpu|" systemd/commd-gpu.service \
    >"$dir/commd-gpu.service"
check_unit systemd/commd.service commd
check_unit systemd/commd-engine.service commd-engine
check_unit systemd/commd-gpu.service commd-gpu
# More than systemd keeps would be lost when commd restarts.
kept=$(sed -n 's/.*STORE_MAX = \([0-9]*\).*/\1/p' \
    "${srcdir:-$(dirname "$0")/../..}/daemon/process/store.h")
if [ -z "$kept" ] || ! grep -qx "FileDescriptorStoreMax=$kept" systemd/commd.service; then
    echo "FAIL: FileDescriptorStoreMax= is not STORE_MAX of daemon/process/store.h: $kept"
    exit 1
fi
# Only the unit for them lets GPUs be opened.
if grep -l nvidia systemd/commd.service systemd/commd-engine.service; then
    echo "FAIL: a GPU may be opened by the units above"
    exit 1
fi
