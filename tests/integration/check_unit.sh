#!/bin/sh
# The generated unit is valid and stays as closed as it was: systemd-analyze verify without a
# complaint, systemd-analyze security at 1.5 or better. Runs in the build directory.
set -eu

unit=${1:-systemd/commd.service}
limit=15 # tenths

if ! command -v systemd-analyze >/dev/null; then
    echo "SKIP: systemd-analyze is not installed"
    exit 77
fi
if [ ! -f "$unit" ]; then
    echo "FAIL: no $unit: run make first, and this in the build directory"
    exit 1
fi
if grep -n '@[a-z]*dir@' "$unit"; then
    echo "FAIL: the lines above were not substituted"
    exit 1
fi

dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT

# verify wants each program to exist and be executable; before "make install" ours is not there
sbin=$(sed -n 's|^ExecStart=\(.*\)/commd .*|\1|p' "$unit")
ln -s /bin/true "$dir/commd"
sed "s|$sbin/commd |$dir/commd |" "$unit" >"$dir/commd.service"

# --man=no: the manuals are not installed either. Complaints about units of this machine, which
# verify loads as dependencies, are not ours: only lines with our unit's name count.
if ! systemd-analyze verify --man=no "$dir/commd.service" >"$dir/out" 2>&1 ||
    grep -q 'commd' "$dir/out"; then
    cat "$dir/out"
    echo "FAIL: systemd-analyze verify"
    exit 1
fi

# The proof that the lines above would notice: a misspelt directive is a complaint.
sed 's|^NoNewPrivileges=|NoNewPrivilege=|' "$dir/commd.service" >"$dir/wrong-commd.service"
systemd-analyze verify --man=no "$dir/wrong-commd.service" >"$dir/out" 2>&1 || :
if ! grep -q 'NoNewPrivilege' "$dir/out"; then
    cat "$dir/out"
    echo "FAIL: systemd-analyze verify accepts a misspelt directive"
    exit 1
fi

if ! systemd-analyze security --no-pager --offline=true --threshold="$limit" \
    "$dir/commd.service" >"$dir/out" 2>&1; then
    cat "$dir/out"
    echo "FAIL: systemd-analyze security: above $limit tenths"
    exit 1
fi
grep 'Overall exposure' "$dir/out"
