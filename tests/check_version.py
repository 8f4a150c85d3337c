#!/usr/bin/env python3
"""The version of a package and of a wheel that are built from a checkout (tools/packages.sh): it
names the commit, a later one is an upgrade for dpkg and for pip, and pip writes it as it stands.
"""

import contextlib
import os
import re
import shutil
import subprocess
import sys
import tempfile

TOP = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))


def run(*command, **environment):
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True,
                          env=dict(os.environ, **environment)).stdout.strip()  # fmt: skip


def pip_version():
    """What pip reads versions with, or None where there is no pip."""
    with contextlib.suppress(ImportError):
        from pip._vendor.packaging.version import Version

        return Version
    return None


class Checkout:
    def __init__(self, folder):
        self.folder = folder
        for name in ("quickstart", "configure.ac"):
            shutil.copy(f"{TOP}/{name}", folder)
        shutil.copytree(f"{TOP}/tools", f"{folder}/tools")

    def git(self, *words, **environment):
        mine = ["-c", "user.name=test", "-c", "user.email=test@example.org"]
        return run("git", "-C", self.folder, *mine, *words, GIT_CONFIG_GLOBAL="/dev/null",
                   GIT_CONFIG_SYSTEM="/dev/null", **environment)  # fmt: skip

    def commit(self, time):
        self.git("add", "--all")
        self.git("commit", "--quiet", "--allow-empty", "--message", time,
                 GIT_COMMITTER_DATE=time)  # fmt: skip

    def version(self):
        return run("bash", "-euc", 'top=$1; . "$1/tools/packages.sh"; build_version', "bash",
                   self.folder)  # fmt: skip


def main():
    if not shutil.which("git"):
        print("skipped: needs git")
        return 77
    with open(f"{TOP}/configure.ac") as file:
        release = re.search(r"AC_INIT\(\[commd\], \[([^]]*)\]", file.read()).group(1)
    with tempfile.TemporaryDirectory(prefix="commd-version-") as folder:
        checkout = Checkout(folder)
        rising = [checkout.version()]
        assert rising == [release], rising  # a tarball
        checkout.git("init", "--quiet")
        # the day begins with zeros, and numbers grow longer
        for time in ("2026-11-09T00:00:07Z", "2026-11-09T10:00:00Z", "2026-11-10T00:04:05Z"):
            checkout.commit(time)
            rising.append(checkout.version())
            said = re.sub(r"\D", "", time)
            commit = checkout.git("rev-parse", "HEAD")[:10]
            assert rising[-1] == f"{release}+git{said}.g{commit}", rising
        with open(f"{folder}/new", "w"):
            pass
        rising.append(checkout.version())
        assert rising[-1] == f"{rising[-2]}.changed", rising
        checkout.git("tag", f"v{release}")
        assert checkout.version() == rising[-1], "the tag is of another tree"
        checkout.commit("2026-11-11T00:00:00Z")
        checkout.git("tag", "--force", f"v{release}")
        assert checkout.version() == release, checkout.version()
    for older, newer in zip(rising, rising[1:]):
        if shutil.which("dpkg"):
            run("dpkg", "--compare-versions", older, "lt", newer)
        if pip_version():
            assert pip_version()(older) < pip_version()(newer), (older, newer)
            assert str(pip_version()(newer)) == newer, newer
    print(" < ".join(rising))
    return 0


if __name__ == "__main__":
    sys.exit(main())
