#!/bin/sh
# ucx_newer.sh BUILD - the engine and its tests once more over a newer UCX than Debian's: PyPI's
# wheel holds a whole one. BUILD: a folder for it, e.g. build-ucx. Run by ./quickstart test.
set -eu
version=1.22.0
top=$(cd "$(dirname "$0")/../.." && pwd)
mkdir -p "$1"
build=$(cd "$1" && pwd)
ucx=$build/ucx-$version/libucx

if [ ! -e "$ucx/.ready" ]; then
    rm -rf "$build/wheel" "$build/ucx-$version"
    "${COMMD_PYTHON:-python3}" -m pip download --quiet --no-deps --dest "$build/wheel" \
        "libucx-cu13==$version"
    "${COMMD_PYTHON:-python3}" -m zipfile -e "$build"/wheel/*.whl "$build/ucx-$version"
    # its pkg-config and libtool files name the folder that it was built in
    sed -i "s|^prefix *=.*|prefix = $ucx|" "$ucx"/lib/pkgconfig/*.pc
    rm -f "$ucx"/lib/*.la "$ucx"/lib/ucx/*.la
    touch "$ucx/.ready"
fi
export LD_LIBRARY_PATH="$ucx/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}"
cd "$build"
if [ ! -e config.status ]; then
    PKG_CONFIG_PATH="$ucx/lib/pkgconfig" "$top/configure" --quiet --with-ucx \
        LDFLAGS="-Wl,-rpath,$ucx/lib"
fi
make -j2 all
./transport/commd-engine --version
found=$(ldd "$(find . -name 'commd-engine' -path '*/.libs/*' -o -name commd-engine -type f |
    head -n 1)" |
    grep libucp)
case $found in
*"$ucx"*) ;;
*) echo "the engine was linked with another UCX: $found" >&2; exit 1 ;;
esac
COMMD_TEST_FABRIC=ucx make -j2 VERBOSE=1 check check_PROGRAMS=tests/unit/transport/test_fabric \
    TESTS="tests/unit/transport/test_fabric tests/integration/test_collectives.py \
        tests/integration/test_faults.py"
