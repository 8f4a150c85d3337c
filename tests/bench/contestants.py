"""Processes that take turns: client/perf/commd_perf_turns.c has the protocol.

A contestant is a library with all of its ranks running. Between its turns every rank sleeps in a
read of its own pipe, so that whose turn it is has the machine for itself.
"""

import json
import os
import selectors
import signal
import subprocess
import time

START_SECONDS, STOP_SECONDS = 90, 5


class Failed(Exception):
    pass


class Unsupported(Failed):
    """It has no such operation, and goes on."""


class Contestant:
    def __init__(self, name, folder, size, commands, kind):
        """`commands`: (argv, environment) of each process that has to be started."""
        self.name, self.folder, self.size, self.commands, self.kind = (
            name,
            folder,
            size,
            commands,
            kind,
        )
        self.processes, self.pipes, self.buffer = [], [], b""
        self.log = folder / "log"

    def start(self):
        self.folder.mkdir()
        for pipe in [str(r) for r in range(self.size)] + ["out"]:
            os.mkfifo(self.folder / pipe)
            # both ways: neither does the open wait for the other side, nor is its end the end
            self.pipes.append(os.open(self.folder / pipe, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC))
        with open(self.log, "wb") as log:
            for argv, env in self.commands:
                env = {k: str(v) for k, v in {**os.environ, **env}.items()}
                self.processes.append(
                    subprocess.Popen(
                        [str(a) for a in argv],
                        env=env,
                        stdin=subprocess.DEVNULL,
                        stdout=log,
                        stderr=log,
                        start_new_session=True,
                    )
                )
        self.read(START_SECONDS)

    def said(self):
        """The line of the log that says most."""
        lines = [
            line.strip()
            for line in self.log.read_text(errors="replace").splitlines()
            if line.strip()
        ]
        lines = [line for line in lines if set(line) - set("-=*#")]
        wrong = [line for line in lines if "rror" in line or "ail" in line or "wrong" in line]
        return (wrong or lines or ["it said nothing"])[-1][:200]

    def killed_by(self):
        """SIGILL: built for another CPU than this one, or for AVX-512 where there is none."""
        signals = [signal.strsignal(-p.returncode) for p in self.processes if (p.poll() or 0) < 0]
        return f" by a signal, {signals[0]}" if signals else ""

    def line(self, limit):
        out = self.pipes[-1]
        with selectors.DefaultSelector() as selector:
            selector.register(out, selectors.EVENT_READ)
            while b"\n" not in self.buffer:
                if selector.select(0.2):
                    self.buffer += os.read(out, 65536)
                elif any(p.poll() for p in self.processes):
                    raise Failed(f"ended{self.killed_by()}: {self.said()}")
                elif time.monotonic() > limit:
                    raise Failed(f"no answer in time; the last it said: {self.said()}")
        line, _, self.buffer = self.buffer.partition(b"\n")
        return json.loads(line)

    def read(self, seconds):
        limit, rows = time.monotonic() + seconds, []
        while True:
            answer = self.line(limit)
            if "done" not in answer:
                rows.append(answer)
            elif "why" in answer:
                raise Unsupported(answer["why"])
            elif answer["done"]:
                raise Failed(self.said())
            else:
                return rows

    def turn(self, words, seconds):
        """The rows of one turn."""
        for pipe in self.pipes[:-1]:
            os.write(pipe, words.encode() + b"\n")
        rows = self.read(seconds)
        wrong = sum(row["wrong"] for row in rows)
        if wrong:
            raise Failed(f"{words}: {wrong} wrong elements; {self.said()}")
        return rows

    def stop(self):
        for pipe in self.pipes:
            os.close(pipe)
        limit = time.monotonic() + STOP_SECONDS
        for sign in (None, signal.SIGTERM, signal.SIGKILL):
            for process in self.processes:
                if sign and process.poll() is None:
                    os.killpg(process.pid, sign)
                    limit = time.monotonic() + STOP_SECONDS
            for process in self.processes:
                try:
                    process.wait(max(0.1, limit - time.monotonic()))
                except subprocess.TimeoutExpired:
                    pass
        self.pipes, self.processes = [], []
