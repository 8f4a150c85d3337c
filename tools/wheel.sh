# shellcheck shell=bash disable=SC2154
# wheel.sh - ./quickstart wheel, and ./quickstart test wheel. Sourced.
#
# The wheel has all that a user needs who has neither a compiler nor root: the programs, libcommd,
# commd._core, and the torch backend for each torch of WHEEL_TORCH. libevent, OpenSSL, libyaml and
# protobuf-c are linked into the programs; UCX, libnuma, libipsec-mb and libsmartcols lie
# beside them as Debian has built them. tools/wheel.py puts it together.
#
# The same commit gives the same bytes: it is built from a copy of the tree, every path of which is
# mapped away, nothing in it has a time, and the time in the archive is that of the commit. What
# else decides are the Debian packages and the torch that it is built with.

packages_wheel=(patchelf binutils python3 python3-venv python3-dev)
packages_test_wheel=(debootstrap systemd-container iproute2)
wheel_torch=${WHEEL_TORCH:-2.13.0} # releases of torch, with spaces between
wheel_base=$top/.cache/bookworm-wheel
wheel_mirror=${COMMD_MIRROR:-http://deb.debian.org/debian}

wheel_venv() { printf '%s\n' "$top/.cache/wheel/torch-$1"; }

make_wheel_venv() {
    local venv
    venv=$(wheel_venv "$1")
    rm -rf "$venv"
    mkdir -p "${venv%/*}"
    "$python" -m venv "$venv" &&
        "$venv/bin/pip" install "torch==$1" numpy setuptools wheel ninja &&
        touch "$venv/.complete"
}

# The time of the commit; of a tarball: of the last change that it tells of.
wheel_time() {
    git -C "$top" log -1 --format=%ct 2>/dev/null || stat -c %Y "$top/CHANGELOG.md"
}

# configure and make install, with the libraries that have a static archive linked in: the folder
# $3, which is searched first, has nothing but those.
wheel_programs() {
    local tree=$1 stage=$2 archives=$3 a
    mkdir -p "$archives"
    for a in libevent_core libevent_openssl libssl libcrypto libyaml libprotobuf-c; do
        ln -s "$(gcc -print-file-name="$a.a")" "$archives/$a.a"
        [ -e "$archives/$a.a" ] || { echo "$a.a is missing" && return 1; }
    done
    (cd "$tree" && autoreconf -fi && mkdir make && cd make &&
        ../configure --prefix=/usr --sysconfdir=/etc --with-ucx --with-ipsec-mb \
            --with-build-version="$(build_version)" \
            CFLAGS="-O2 -g0 -ffile-prefix-map=$tree=." \
            LIBEVENT_CFLAGS=" " LIBEVENT_LIBS="-L$archives -levent_openssl -levent_core" \
            OPENSSL_CFLAGS=" " OPENSSL_LIBS="-L$archives -lssl -lcrypto" \
            YAML_CFLAGS=" " YAML_LIBS="-L$archives -lyaml" \
            PROTOBUF_C_CFLAGS=" " PROTOBUF_C_LIBS="-L$archives -lprotobuf-c" &&
        make -j"$(nproc)" && make install DESTDIR="$stage")
}

# commd._core and the backend for torch $3, into $2/python-$3. torch calls the compiler through
# ccache where there is one, and that may make paths relative, of which the maps know nothing.
wheel_python() {
    local tree=$1 work=$2 release=$3 venv
    venv=$(wheel_venv "$release")
    (cd "$tree/client/python" &&
        PATH=$venv/bin:$PATH CCACHE_DISABLE=1 \
            COMMD_PREFIX=$work/stage/usr COMMD_RPATH="\$ORIGIN/lib" \
            COMMD_BUILD_DIR=$work/python-$release MAX_JOBS=$(nproc) PYTHONDONTWRITEBYTECODE=1 \
            CFLAGS="-ffile-prefix-map=$tree=. -ffile-prefix-map=$venv=torch" \
            "$venv/bin/python" setup.py build)
}

# build_wheel FOLDER: FOLDER/commd-*.whl; FOLDER is made anew.
build_wheel() {
    local out=$1 release
    rm -rf "$out"
    copy_of_tree "$out/work/commd" || return
    wheel_programs "$out/work/commd" "$out/work/stage" "$out/work/archives" || return
    for release in $wheel_torch; do
        wheel_python "$out/work/commd" "$out/work" "$release" || return
    done
    SOURCE_DATE_EPOCH=$(wheel_time) "$python" "$out/work/commd/tools/wheel.py" "$out/work" "$out" \
        "$(build_version)" || return
    rm -rf "$out/work"
}

prepare_wheel() {
    local release
    command -v dpkg-query >/dev/null || fail "wheels are built on Debian only"
    install_packages "${packages_build[@]}" "${packages_wheel[@]}"
    for release in $wheel_torch; do
        [ -e "$(wheel_venv "$release")/.complete" ] ||
            step "torch $release to build with" "can pip reach its index? pip config list" \
                make_wheel_venv "$release"
    done
}

cmd_wheel() {
    prepare_wheel
    step "wheel" "which library has no static archive?" build_wheel "$build/wheels"
    printf '%s\n' "$build"/wheels/*.whl
}

# ---- ./quickstart test wheel -------------------------------------------------------------------

make_wheel_base() {
    rm -rf "$wheel_base" "$wheel_base.new"
    mkdir -p "${wheel_base%/*}"
    debootstrap --variant=minbase --include=python3,python3-venv bookworm "$wheel_base.new" \
        "$wheel_mirror" && mv "$wheel_base.new" "$wheel_base"
}

# numpy and torch as a user would get them, for a machine without a network.
fetch_for_wheel() {
    local release=${wheel_torch%% *}
    "$(wheel_venv "$release")/bin/pip" download -d "$top/.cache/wheel/index-$release" \
        "torch==$release" numpy setuptools
}

wheels_are_equal() {
    local a=("$build"/wheels/*.whl) b=("$build"/wheels-again/elsewhere/*.whl)
    sha256sum "${a[@]}" "${b[@]}"
    [ "${a[0]##*/}" = "${b[0]##*/}" ] && cmp "${a[0]}" "${b[0]}" || return
    rm -rf "$build/wheels-again"
}

cmd_test_wheel() {
    local release pythons=()
    [ "$(id -u)" -eq 0 ] || fail "test wheel starts a container: run it as root"
    install_packages "${packages_test_wheel[@]}"
    cmd_wheel
    step "the same again, in another folder" "see the step before" \
        build_wheel "$build/wheels-again/elsewhere"
    step "both have the same bytes" "diffoscope says where they differ" wheels_are_equal
    [ -e "$wheel_base" ] ||
        step "a Debian in .cache/bookworm-wheel" \
            "is $wheel_mirror reachable? COMMD_MIRROR names another" make_wheel_base
    step "torch and numpy for it" "can pip reach its index? pip config list" fetch_for_wheel
    for release in $wheel_torch; do pythons+=("$(wheel_venv "$release")/bin/python"); done
    exec python3 "$top/tests/wheel/wheel.py" "$wheel_base" "$build"/wheels/*.whl \
        "$top/.cache/wheel/index-${wheel_torch%% *}" "${pythons[@]}"
}
