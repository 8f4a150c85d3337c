"""What bash and zsh complete behind commctl."""

import os
import pty
import re
import selectors
import shlex
import shutil
import subprocess
import tempfile

from limit import HANG, Limit

# What a user has in .zshrc, and two keys: ^Xa inserts all that is offered for the word before the
# cursor, ^Xd tells how many there were and what is on the line, and empties it.
ZSHRC = r"""
fpath=($COMPLETION $fpath)
autoload -Uz compinit
compinit -u -D
PS1='% '
typeset -g found=0
all() { found=$compstate[nmatches]; compstate[insert]=all; }
offer() { comppostfuncs=(all); _main_complete; }
tell() { print -r -u $TELL -- "$found $BUFFER"; BUFFER=; found=0; }
zle -C offer complete-word offer
zle -N tell
bindkey '^Xa' offer
bindkey '^Xd' tell
"""

BASH = """
. "$1"; shift
commctl() { "$COMMCTL" "$@"; }
command() { "$@"; }
COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1))
_commctl
printf '%s\\n' "${COMPREPLY[@]}"
"""


def bash_offers(completion, commctl, environment, *words):
    """What it offers for the last word. It takes words apart at = and :, and replaces what is
    behind the last one. @completion: the folder of the file commctl; @commctl: the program."""
    apart = [part for word in words for part in re.split("([=:])", word) if part or not word]
    done = subprocess.run(
        ["bash", "-c", BASH, "bash", f"{completion}/commctl", "commctl", *apart],
        capture_output=True, text=True, env=dict(environment, COMMCTL=commctl),
    )  # fmt: skip
    if done.returncode or done.stderr:
        raise AssertionError(f"bash ended with {done.returncode}: {done.stderr}")
    kept = words[-1][: len(words[-1]) - len(re.split("[=:]", words[-1])[-1])]
    return [kept + reply for reply in done.stdout.split()]


class Zsh:
    """An interactive one on a terminal of its own. @completion: the folder of the file _commctl;
    @path: where programs are looked for first."""

    def __init__(self, completion, path, environment):
        self.home = tempfile.mkdtemp(prefix="commd-zsh-")
        with open(os.path.join(self.home, ".zshrc"), "w") as file:
            file.write(ZSHRC)
        self.answers, tell = os.pipe()
        self.terminal, inside = pty.openpty()
        self.process = subprocess.Popen(
            ["zsh", "-d", "-i"], stdin=inside, stdout=inside, stderr=inside, pass_fds=[tell],
            start_new_session=True,
            env=dict(environment, HOME=self.home, ZDOTDIR=self.home, COMPLETION=completion,
                     TELL=str(tell), TERM="xterm", PATH=f"{path}:{os.environ['PATH']}"),
        )  # fmt: skip
        os.close(tell)
        os.close(inside)
        self.shown = b""  # on the terminal

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.kill()
        self.process.wait()
        os.close(self.terminal)
        os.close(self.answers)
        shutil.rmtree(self.home)

    def typed(self, keys):
        """(how many matches, the line) after these keys."""
        os.write(self.terminal, keys.encode() + b"\x18d")
        answer, limit = b"", Limit(3 * HANG)
        with selectors.DefaultSelector() as ready:
            ready.register(self.terminal, selectors.EVENT_READ)
            ready.register(self.answers, selectors.EVENT_READ)
            while not answer.endswith(b"\n"):
                if limit.over():
                    raise AssertionError(f"zsh does not answer to {keys!r}: {self.shown!r}")
                for key, _ in ready.select(1):
                    if key.fd == self.terminal:
                        self.shown += os.read(self.terminal, 4096)
                    else:
                        answer += os.read(self.answers, 4096)
        if b"_commctl:" in self.shown:
            raise AssertionError(f"zsh complains after {keys!r}: {self.shown.decode()}")
        found, _, line = answer.decode().rstrip("\n").partition(" ")
        return int(found), line

    def offered(self, *words):
        """What it offers for the last word."""
        before = " ".join(["commctl", *(shlex.quote(word) for word in words[:-1])])
        found, line = self.typed(f"{before} {words[-1]}\x18a")
        if not line.startswith(before):
            raise AssertionError(f"{before!r} became {line!r}")
        words = shlex.split(line[len(before) :]) if found else []
        # behind an option = goes away when the next key is a space
        return [re.sub("^(--[a-z]+)=$", r"\1", word) for word in words]
