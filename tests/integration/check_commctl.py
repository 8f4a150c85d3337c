#!/usr/bin/env python3
"""What commctl --help lists stands everywhere else where a user looks: verbs and options in the
manual page and in the completions, verdicts and events in the manual page. bash and, where it is
there, zsh are asked what they complete. The other programs' pages have the options of their --help.
"""

import functools
import os
import re
import shutil
import subprocess
import sys

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "lib"))
from shells import Zsh, bash_offers  # noqa: E402

TOP = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
HERE = os.path.exists("client/ctl/commctl")
BUILD = os.path.abspath(os.environ.get("COMMD_BUILD") or ("." if HERE else f"{TOP}/build"))
COMMCTL = f"{BUILD}/client/ctl/commctl"
COMPLETION = f"{TOP}/client/ctl/completion"
NOWHERE = dict(os.environ, COMMD_SOCKET="/nonexistent")
PAGES = {"daemon/commd": "daemon/commd.8", "client/perf/commd-perf": "client/perf/commd-perf.1",
         "transport/commd-gpu": "transport/gpu/commd-gpu.8"}  # fmt: skip
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


def is_for(verb, option):
    """Does commctl take it? It says so before it asks a commd."""
    words = ["config"] if verb == "show" else []
    done = subprocess.run([COMMCTL, verb, *words, option], stdin=subprocess.DEVNULL, text=True,
                          env=NOWHERE, capture_output=True)  # fmt: skip
    return "is not for it" not in done.stderr


def check_completion(name, offers, typed, takes, options):
    """@takes: {option: verbs} of those that are not for all."""
    same(f"{name}'s completion", offers(""), typed)
    for verb in typed:
        mine = {o for o in options if verb in takes.get(o, {verb})}
        same(f"{name}'s completion of {verb}", offers(verb, "--"), mine)
    same(f"{name}'s completion of show", offers("show", ""), ["config", "tuning"])
    same(f"{name}'s completion of kick", offers("kick", ""), ["pid", "rank"])
    same(f"{name}'s completion of kick GROUP -", offers("kick", "g", "--r"), ["--reason"])


def check_page(program, page):
    """In mdoc an option is `Fl -name`, in man it stands as it is typed."""
    text = subprocess.run([f"{BUILD}/{program}", "--help"], check=True, text=True,
                          stdout=subprocess.PIPE).stdout  # fmt: skip
    form = r"(?<![\w-])--[a-z][a-z_-]+"
    lines = read(page).replace("\\-", "-")
    found = ["-" + name for name in re.findall(r"(?:Fl|\|) (-[a-z][a-z-]+)", lines)]
    if not lines.startswith(".Dd"):
        found = re.findall(form, lines)
    same(page, found, re.findall(form, text))


def main():
    text = subprocess.run([COMMCTL, "--help"], check=True, text=True,
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
    verdicts = re.findall(r"\bV\(([A-Z_]+)\)", read("client/ctl/diagnose.h"))
    heads = re.findall(r"^\.TP\n\.(?:B|BR) (.*)$", parts["VERDICTS"], re.M)
    described = [word for head in heads for word in re.findall(r"[A-Z_]{4,}", head)]
    same("commctl.8, VERDICTS,", described, verdicts)
    refused = subprocess.run([COMMCTL, "events", "--kind", "start,"], text=True,
                             stderr=subprocess.PIPE).stderr  # fmt: skip
    events = refused.partition("the kinds are ")[2].strip().split(",")
    row = re.search(r"^event\|string\|T{\n(.*?)^T}", page, re.M | re.S).group(1)
    same("commctl.8, events,", re.findall(r'"(\w+)"', row), events)

    for program, page in PAGES.items():
        if os.path.exists(f"{BUILD}/{program}"):
            check_page(program, page)

    typed = {verb.split()[0] for verb in verbs}
    takes["--watch"] = {verb for verb in typed - {"help"} if is_for(verb, "--watch")}
    bash = functools.partial(bash_offers, COMPLETION, COMMCTL, NOWHERE)
    check_completion("bash", bash, typed, takes, options)
    if shutil.which("zsh"):
        with Zsh(COMPLETION, os.path.dirname(COMMCTL), NOWHERE) as zsh:
            check_completion("zsh", zsh.offered, typed, takes, options)
    else:
        print("zsh is not here, and was not asked")
    for failure in failures:
        print(failure)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
