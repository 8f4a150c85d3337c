#!/bin/bash
# check_suite.sh - what ./quickstart test (tools/suite.sh) reads in the output of make check.
set -euo pipefail
top=$(cd "$(dirname "$0")/.." && pwd)
logs=/nonexistent
# shellcheck source=tools/suite.sh
. "$top/tools/suite.sh"
log=$(mktemp)
trap 'rm -f "$log"' EXIT

# as automake writes it, of tests that themselves print what looks like results
cat >"$log" <<'END'
Testsuite summary for commd 0.1.0
# TOTAL: 0
# PASS:  0
# FAIL:  0
# ERROR: 0

PASS: tests/fine
FAIL: tests/check_rooms.py
ERROR: tests/other.py
# TOTAL: 3
# PASS:  1
# FAIL:  1
# ERROR: 1

FAIL: tests/check_rooms.py
==========================

FAIL: transport/commd-engine loads libevent.so
FAIL: alone
===
the last of rooms
FAIL tests/check_rooms.py (exit status: 1)

ERROR: tests/other.py
=====================

the last of other
ERROR tests/other.py (exit status: 99)

Testsuite summary for commd 0.1.0
# TOTAL: 3
# PASS:  1
# FAIL:  1
# ERROR: 1
END

same() { # WHAT GOT WANTED
    [ "$2" = "$3" ] || { printf 'FAIL %s: "%s" instead of "%s"\n' "$@"; exit 1; }
}

same "names of failed tests" "$(failed_tests "$log" | tr '\n' ' ')" \
    "tests/check_rooms.py tests/other.py "
same "log of a failed test" "$(failed_test_log "$log" tests/check_rooms.py | tail -n 1)" \
    "    the last of rooms"
same "log of an error" "$(failed_test_log "$log" tests/other.py | tail -n 1)" \
    "    the last of other"
same "how many failed" "$(summed "$log" FAIL XPASS ERROR)" 2
same "how many passed" "$(summed "$log" PASS XFAIL)" 1

# the folder of another checkout is not filled from here
folder=$(mktemp -d)
trap 'rm -rf "$log" "$folder"' EXIT
cp -r "$top/quickstart" "$top/tools" "$folder"
mkdir "$folder/theirs"
ln -s theirs "$folder/.venv"
said=$("$folder/quickstart" build 2>&1) && { echo "FAIL a linked .venv is filled"; exit 1; }
same "what is linked" "$(grep -c "$folder/.venv is a symbolic link to theirs" <<<"$said")" 1
same "what to do" "$(grep -c "rm $folder/.venv" <<<"$said")" 1
