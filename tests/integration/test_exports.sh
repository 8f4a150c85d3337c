#!/bin/sh
# libcommd.so exports what libcommd.map says and nothing else, and needs libc only: a training
# process loads it beside everything else that it has. Runs in the build directory.
set -eu

map=${srcdir:-$(dirname "$0")/../..}/client/lib/libcommd.map
library=${1:-client/lib/.libs/libcommd.so}

if [ ! -e "$library" ]; then
    echo "FAIL: no $library: run make first, and this in the build directory"
    exit 1
fi
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
failed=

sed -n '/global:/,/local:/s/^ *\(commd_[a-z_0-9]*\);.*/\1/p' "$map" | sort >"$dir/wanted"
[ -s "$dir/wanted" ] || { echo "FAIL: no symbols in $map"; exit 1; }
nm -D --defined-only "$library" |
    sed -n 's/^[0-9a-f]* [^A] \([^@]*\).*/\1/p' | sort >"$dir/exported"
if ! diff "$dir/wanted" "$dir/exported"; then
    echo "FAIL: the lines above: < only in the map, > only in the library"
    failed=1
fi

# every function of the header can be linked
sed -n 's/^[a-z].*[ *]\(commd_[a-z_]*\)(.*/\1/p' \
    "$(dirname "$map")/../include/commd/commd.h" | grep -v '_fn$' |
    sort -u >"$dir/declared"
if ! diff "$dir/declared" "$dir/wanted"; then
    echo "FAIL: the lines above: < only in commd.h, > only in the map"
    failed=1
fi

# sanitizers bring libraries of their own; the loader has the thread-local variables
readelf -d "$library" | sed -n 's/.*(NEEDED).*\[\(.*\)\]/\1/p' |
    grep -v '^lib[atu]*san\.\|^libubsan\.\|^libm\.\|^ld-linux' >"$dir/needed" || :
printf 'libc.so.6\n' >"$dir/libc"
if ! diff "$dir/libc" "$dir/needed"; then
    echo "FAIL: libcommd needs more than libc: the lines with >"
    failed=1
fi
[ -z "$failed" ] || exit 1
echo "$(wc -l <"$dir/exported") symbols, and nothing but libc is needed"
