#!/usr/bin/env python3
"""What commctl --help lists stands everywhere else where a user looks: verbs and options in the
manual page and in the completions, verdicts in the manual page. bash is asked what it completes;
zsh's is read, and zsh, where it is there, says whether it can read it, too.
"""

import os
import re
import shutil
import subprocess
import sys

TOP = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
BUILD = os.environ.get("COMMD_BUILD") or ("." if os.path.exists("client/ctl") else f"{TOP}/build")
BASH = f"{TOP}/client/ctl/completion/commctl"
ZSH = f"{TOP}/client/ctl/completion/_commctl"
failures = []


def read(path):
    with open(os.path.join(TOP, path)) as file:
        return file.read()


def same(what, got, want):
    got, want = set(got), set(want)
    if want - got:
        failures.append(f"{what} lacks {' '.join(sorted(want - got))}")
    if got - want:
        failures.append(f"{what} has {' '.join(sorted(got - want))}, which does not exist")


def bash(*words):
    """What it offers for the last word; no commd is asked."""
    script = ('. "$1"; shift; COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); _commctl; '
              'printf "%s\\n" "${COMPREPLY[@]}"')  # fmt: skip
    done = subprocess.run(["bash", "-c", script, "bash", BASH, "commctl", *words], check=True,
                          env={"PATH": "/usr/bin:/bin", "COMMD_SOCKET": "/nonexistent"},
                          stdout=subprocess.PIPE, text=True)  # fmt: skip
    return done.stdout.split()


def main():
    text = subprocess.run([f"{BUILD}/client/ctl/commctl", "--help"], check=True, text=True,
                          stdout=subprocess.PIPE).stdout  # fmt: skip
    lines = re.findall(r"^  (\S.*?)(?:  +(.*))?$", text, re.M)
    verbs = [name for name, _ in lines if not name.startswith("-")]
    options = {name.split()[0]: what or "" for name, what in lines if name.startswith("-")}
    # "of wait: ..." or "how long top and trace watch": who takes it; else all verbs do
    takes = {}
    for option, what in options.items():
        of = re.match(r"of ([a-z]+):|how long (top) and (trace) watch", what)
        if of:
            takes[option] = {verb for verb in of.groups() if verb}
    if len(verbs) < 20 or len(options) < 12 or len(takes) < 7:
        failures.append(f"--help was not understood: {verbs} {options} {takes}")

    page = read("client/ctl/commctl.8").replace("\\-", "-")
    parts = dict(re.findall(r"^\.SH ([A-Z ]+)\n(.*?)(?=^\.SH|\Z)", page, re.M | re.S))
    heads = re.findall(r'^\.TP\n\.(?:B|BR|BI) (.*)$', parts["VERBS"], re.M)
    same("commctl.8, VERBS,", [re.split(r' "', head)[0] for head in heads], verbs)
    heads = re.findall(r"^\.TP\n\.(?:B|BR|BI) (.*)$", parts["OPTIONS"], re.M)
    described = [word for head in heads for word in re.findall(r"--[a-z]+", head)]
    same("commctl.8, OPTIONS,", described, options)
    verdicts = re.findall(r"^ +VERDICT_([A-Z_]+)\b", read("client/ctl/diagnose.h"), re.M)
    heads = re.findall(r"^\.TP\n\.(?:B|BR) (.*)$", parts["VERDICTS"], re.M)
    described = [word for head in heads for word in re.findall(r"[A-Z_]{4,}", head)]
    same("commctl.8, VERDICTS,", described, verdicts)

    typed = {verb.split()[0] for verb in verbs}
    same("bash's completion", bash(""), typed)
    for verb in typed:
        mine = {o for o in options if verb in takes.get(o, {verb})}
        same(f"bash's completion of {verb}", bash(verb, "--"), mine)
    same("bash's completion of show", bash("show", ""), ["config", "tuning"])
    same("bash's completion of kick", bash("kick", ""), ["pid", "rank"])
    same("bash's completion of kick GROUP -", bash("kick", "g", "--r"), ["--reason"])

    text = read("client/ctl/completion/_commctl")
    listed = re.search(r"verbs=\(\n(.*?)\n    \)", text, re.S).group(1)
    same("zsh's completion", re.findall(r"^ +'([a-z-]+):", listed, re.M), typed)
    found = re.findall(r"^ +'(?:\(-\))?(?:'\{-h,)?(--[a-z]+)", text, re.M)
    same("zsh's completion of options", found, options)
    if shutil.which("zsh") and subprocess.run(["zsh", "-n", ZSH]).returncode:
        failures.append("zsh cannot read its completion")
    for failure in failures:
        print(failure)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
