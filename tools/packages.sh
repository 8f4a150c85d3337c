# shellcheck shell=bash disable=SC2154
# packages.sh - ./quickstart package, and ./quickstart test booted, most of which is part of the CI.
# Sourced.
#
# The packages are built in a copy of what git knows or would know, so that nothing of a build in
# this tree gets into them, and nothing of theirs into it. Both need Debian.

packages_package=(build-essential debhelper dh-python python3-dev python3-setuptools)
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

# The version of what is built from this tree: that of the release and, unless this is the commit
# with its tag (v0.1.0), the time and the name of the commit. So a later build is an upgrade for apt
# and for pip, and commd says which it is. pip takes it as it stands (PEP 440): between two dots
# there is no number that begins with 0, which pip would write otherwise.
build_version() {
    local release commit=
    release=$("$top/quickstart" --version)
    release=${release#commd }
    if [ -e "$top/.git" ] && commit=$(TZ=UTC0 git -C "$top" log -1 --abbrev=10 \
        --date=format-local:%Y%m%d%H%M%S --format=+git%cd.g%h); then
        if [ -n "$(git -C "$top" status --porcelain)" ]; then
            commit+=.changed
        elif git -C "$top" tag --points-at HEAD | grep -xF "v$release" >/dev/null; then
            commit=
        fi
    fi
    printf '%s%s\n' "$release" "$commit"
}

# An entry of debian/changelog for that version; its time is the one that dpkg builds with.
changelog_entry() {
    printf 'commd (%s) unstable; urgency=medium\n\n  * Built from a checkout.\n\n' "$1"
    printf ' -- %s  %s\n\n' "$(sed -n 's/^Maintainer: //p' "$top/debian/control")" \
        "$(TZ=UTC0 git -C "$top" log -1 --date=rfc2822-local --format=%cd)"
}

build_packages() {
    local out=$build/packages version
    rm -rf "$out"
    copy_of_tree "$out/commd" && version=$(build_version) || return
    if [[ $version == *+git* ]]; then
        { changelog_entry "$version" && cat "$top/debian/changelog"; } \
            >"$out/commd/debian/changelog" || return
        # dpkg makes what is younger than that as old, and leaves what is older: a checkout's times
        find "$out/commd" -exec touch -h -d "$(git -C "$top" log -1 --format=@%ct)" {} + || return
    fi
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
    cp "$build"/packages/{commd,commd-gpu,libcommd0,python3-commd}_*.deb "$base/root/debs" || return
    chroot "$base" sh -c 'apt-get update && DEBIAN_FRONTEND=noninteractive apt-get -y \
        --no-install-recommends --download-only install /root/debs/*.deb \
        munge slurmctld slurmd slurm-client nftables' || return
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

# Why no machine can be booted here; 1 if nothing speaks against it.
booted_cannot() {
    if ! command -v dpkg-query >/dev/null; then
        echo "packages are built on Debian only"
    elif [ "$(id -u)" -ne 0 ]; then
        echo "containers that boot need root"
    elif ! unshare --mount --pid --net --uts --ipc --fork true 2>/dev/null; then
        echo "namespaces cannot be made here: no CAP_SYS_ADMIN?"
    elif ! ip netns list >/dev/null 2>&1; then
        echo "ip netns does not work here"
    elif [ ! -e "$1" ] && ! "$python" -c 'import sys, urllib.request as r
r.urlopen(sys.argv[1], timeout=20)' "$booted_mirror/dists/bookworm/Release" 2>/dev/null; then
        echo "$booted_mirror is not reachable; COMMD_MIRROR names another"
    else
        return 1
    fi
}

# A part of the CI, after $1 seconds: without torch, and without what only debuggers need of the
# packages.
run_booted() {
    local base=$top/.cache/bookworm why
    if [ "${1%.*}" -ge "$ci_booted_before" ]; then
        why="it took $1 s so far, and the CI has $ci_seconds: ./quickstart test booted"
    elif [ "$(id -u)" -ne 0 ]; then
        why="containers that boot need root"
    else
        install_packages "${packages_package[@]}" "${packages_booted[@]}" || return
        why=$(booted_cannot "$base") || why=
    fi
    if [ -n "$why" ]; then
        printf 'skipped: %s\n# SKIP: 1\n' "$why"
        return
    fi
    DEB_BUILD_OPTIONS="noautodbgsym nocheck parallel=$(nproc)" build_packages &&
        booted_base "$base" || return
    python3 "$top/tests/booted/booted.py" "$base" "$build/packages" &&
        python3 "$top/tests/booted/slurm.py" "$base" "$build/packages"
}

cmd_test_booted() {
    local base=$top/.cache/bookworm site=$build/booted-site with_torch=() rc=0 why
    install_packages "${packages_booted[@]}"
    if why=$(booted_cannot "$base"); then fail "test booted: $why"; fi
    cmd_package
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
