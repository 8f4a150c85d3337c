#!/usr/bin/env python3
"""Very many strangers at one port: a program for tests. Says "held" once it has opened them, and at
the end of its stdin how many it has opened in all.

    crowd.py PORT HELD RATE SEED

HELD connections that say nothing, or the beginning of a hello, are opened as fast as that goes and
kept, also those that the other side has closed. Then RATE times in a second the oldest one is
closed, and another one says a whole thing of strangers.py: garbage, a scan, TLS, a hello of nobody.
Half of all come from the address of the nodes of a test, the others from addresses of nobody.
"""

import collections
import contextlib
import itertools
import os
import random
import resource
import select
import socket
import sys
import time

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import strangers  # noqa: E402

SPARE = 64  # descriptors for everything else
HTTP_HOST = "Host: 127.0.0.1\r\n"
GET = f"GET /metrics HTTP/1.1\r\n{HTTP_HOST}\r\n".encode()
HALVES = [b"", strangers.CLIENT_HELLO[:60], GET[:-2], strangers.hello_of_engine(0, 2, 1, 0)[:40]]
WHOLE = [
    lambda rng: GET,
    lambda rng: strangers.CLIENT_HELLO + rng.randbytes(145),
    lambda rng: strangers.garbage(rng, None),
    lambda rng: strangers.scan(rng, None),
    lambda rng: strangers.tls_records(rng, None),
    lambda rng: strangers.engine_hello(rng, None),
    lambda rng: strangers.engine_frames(rng, None),
]


def room(wanted):
    """So many descriptors may be open, or as many as this user may have."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted + SPARE, max(wanted + SPARE, most)))
        return wanted
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    return min(wanted, most - SPARE)


class Crowd:
    def __init__(self, port, rng):
        self.port, self.rng = port, rng
        self.sources = itertools.cycle([None, "127.0.0.9", None, "127.0.1.1"])
        self.held, self.opened = collections.deque(), 0

    def connect(self):
        sock = socket.socket()
        sock.setblocking(False)
        source = next(self.sources)
        if source:
            sock.setsockopt(socket.IPPROTO_IP, 24, 1)  # IP_BIND_ADDRESS_NO_PORT
            sock.bind((source, 0))
        sock.connect_ex(("127.0.0.1", self.port))
        self.held.append(sock)
        self.opened += 1
        return sock

    def half_open(self):
        say(self.connect(), HALVES[self.opened % len(HALVES)])

    def whole(self):
        say(self.connect(), WHOLE[self.opened % len(WHOLE)](self.rng))

    def leave(self):
        self.held.popleft().close()


def say(sock, data):
    with contextlib.suppress(OSError):  # not connected yet, or closed already
        if data:
            sock.send(data)


def over(seconds):
    return bool(select.select([0], [], [], seconds)[0])


def main():
    port, wanted, rate, seed = map(int, sys.argv[1:])
    crowd = Crowd(port, random.Random(seed))
    wanted = room(wanted)
    while len(crowd.held) < wanted and not (crowd.opened % 64 == 0 and over(0)):
        crowd.half_open()
    print("held", len(crowd.held), flush=True)
    began, done = time.monotonic(), 0
    while not over(0.01 if rate else None):
        due = int((time.monotonic() - began) * rate)
        for _ in range(min(due - done, wanted)):
            crowd.leave()
            crowd.whole()
        done = due
    print(crowd.opened)


if __name__ == "__main__":
    main()
