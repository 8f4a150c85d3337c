# shellcheck shell=bash disable=SC2154
# packages.sh - ./quickstart package, and ./quickstart test booted. Sourced.
#
# The packages are built in a copy of what git knows or would know, so that nothing of a build in
# this tree gets into them, and nothing of theirs into it. Both need Debian.

packages_package=(dpkg-dev debhelper dh-python python3-dev python3-setuptools)
packages_booted=(debootstrap systemd-container iproute2 python3 util-linux)
booted_mirror=${COMMD_MIRROR:-http://deb.debian.org/debian}

copy_of_tree() {
    rm -rf "$1"
    mkdir -p "$1"
    if git -C "$top" rev-parse --is-inside-work-tree >/dev/null 2>&1; then
        (cd "$top" && git ls-files -co --exclude-standard -z |
            tar c --null --ignore-failed-read -T - | tar x -C "$1")
    else # the tarball
        (cd "$top" && tar c --exclude='./build*' --exclude=./.venv --exclude=./.cache . |
            tar x -C "$1")
    fi
}

build_packages() {
    local out=$build/packages
    rm -rf "$out"
    copy_of_tree "$out/commd" || return
    (cd "$out/commd" && dpkg-buildpackage -b -us -uc) || return
    rm -rf "$out/commd"
}

cmd_package() {
    command -v dpkg-query >/dev/null || fail "packages are built on Debian only"
    install_packages "${packages_build[@]}" "${packages_package[@]}"
    step "packages" "which build dependency is missing? debian/control" build_packages
    printf '%s\n' "$build"/packages/*.deb
}

# A Debian tree with what the packages depend on, and Slurm, in its apt cache. What it holds of
# commd's dependencies is looked at each time, because they may have changed.
booted_base() {
    local base=$1
    if [ ! -e "$base" ]; then
        rm -rf "$base.new"
        mkdir -p "$(dirname "$base")"
        debootstrap --variant=minbase \
            --include=systemd,systemd-sysv,dbus,iproute2,openssl,procps \
            bookworm "$base.new" "$booted_mirror" || return
        mv "$base.new" "$base" || return
    fi
    rm -rf "$base/root/debs"
    mkdir "$base/root/debs" || return
    cp "$build"/packages/{commd,libcommd0,python3-commd}_*.deb "$base/root/debs" || return
    chroot "$base" sh -c 'apt-get update && DEBIAN_FRONTEND=noninteractive apt-get -y \
        --no-install-recommends --download-only install /root/debs/*.deb \
        munge slurmctld slurmd slurm-client' || return
    rm -r "$base/root/debs"
}

# The torch backend for the packages, into the folder $1, built as doc/install.md says.
booted_site() {
    local deb tree=$build/booted-tree
    rm -rf "$1" "$tree"
    for deb in "$build"/packages/{libcommd0,libcommd-dev,python3-commd}_*.deb; do
        dpkg-deb -x "$deb" "$tree" || return
    done
    PATH=$venv/bin:$PATH COMMD_PREFIX=$tree/usr COMMD_RPATH=/usr/lib MAX_JOBS=$(nproc) \
        COMMD_BUILD_DIR=$build/booted-objects \
        "$venv/bin/pip" install --no-build-isolation --no-deps --target "$1" \
        "$tree/usr/share/commd/python" || return
    rm -rf "$tree"
}

# The machines see .venv as it is here, and they have the Python of Debian 12.
booted_has_torch() {
    [ "$torch_spec" != none ] &&
        [ "$(readlink -f "$(command -v "$python")")" = /usr/bin/python3.11 ]
}

cmd_test_booted() {
    local base=$top/.cache/bookworm site=$build/booted-site with_torch=() rc=0
    [ "$(id -u)" -eq 0 ] || fail "test booted starts containers: run it as root"
    cmd_package
    install_packages "${packages_booted[@]}"
    step "a Debian in .cache/bookworm" "is $booted_mirror reachable? COMMD_MIRROR names another" \
        booted_base "$base"
    if booted_has_torch; then
        install_packages "${packages_python[@]}"
        make_python
        step "torch backend for the packages" "does the compiler fit torch's headers?" \
            booted_site "$site"
        with_torch=("$venv" "$site")
    fi
    printf '\nthe packages\n'
    python3 "$top/tests/booted/booted.py" "$base" "$build/packages" || rc=1
    printf '\njobs under Slurm\n'
    python3 "$top/tests/booted/slurm.py" "$base" "$build/packages" "${with_torch[@]}" || rc=1
    return "$rc"
}
