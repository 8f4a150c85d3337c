#!/usr/bin/env python3
"""Strangers on the network, without the cluster's key: a program for test_hostile.py.

    strangers.py SECONDS SEED PROCESSES PORT...

Each process connects to the ports again and again (commd's for nodes, and the engines'), and does
one thing: nothing at all, garbage, a piece of a TLS ClientHello, TLS with a certificate that nobody
asked for, TLS records and engine frames of junk with or without the right beginning, what port
scanners send; then it leaves, or stays a while.
"""

import contextlib
import os
import random
import signal
import socket
import ssl
import struct
import sys
import time

HELD = 40  # connections that a process keeps open

CLIENT_HELLO = bytes.fromhex("16030100c6010000c20303") + b"\x55" * 32
SCANS = [
    b"GET / HTTP/1.0\r\n\r\n",
    b"\r\n\r\n",
    b"SSH-2.0-scan\r\n",
    b"\x80\x9e\x01\x03\x01",
    b"*1\r\n$4\r\nPING\r\n",
]


def silence(_, sock):
    return b""


def garbage(rng, sock):
    return rng.randbytes(rng.choice([1, 8, 300, 70000]))


def scan(rng, sock):
    return rng.choice(SCANS)


def part_of_client_hello(rng, sock):
    return CLIENT_HELLO[: rng.randrange(1, len(CLIENT_HELLO))]


def tls_records(rng, sock):
    """Right headers, junk inside."""
    record = rng.randbytes(rng.randrange(200))
    return b"".join(
        struct.pack(">BHH", rng.choice([20, 21, 22, 23, 24]), 0x0303, len(record)) + record
        for _ in range(5)
    )


def certificate_tls(rng, sock):
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    sock.settimeout(0.2)
    with contextlib.suppress(OSError):
        context.wrap_socket(sock, server_hostname="node0")
    return b""


def engine_hello(rng, sock):
    """With an id that nobody has."""
    numbers = rng.randrange(4), rng.randrange(5), 0, rng.randrange(4)
    return hello_of_engine(*numbers, rng.randbytes(48))


def hello_of_engine(channel, channels, express, of, who=bytes(48)):
    """fabric_tcp_priv.h: struct hello; @who: id, random bytes, and what proves them."""
    head = struct.pack("<I7H6xQ", 0x636D6448, 5, channel, channels, express, of, 0, 3, 0)
    return head + who


def engine_frames(rng, sock):
    data = engine_hello(rng, sock)
    for _ in range(20):
        data += struct.pack(
            "<IHBBIIQ",
            rng.choice([0, 8, 1 << 20, 2**32 - 1]),
            rng.choice([0, 40, 65535]),
            rng.randrange(8),
            0,
            rng.getrandbits(32),
            rng.getrandbits(32),
            rng.getrandbits(64),
        )
    return data + rng.randbytes(1000)


THINGS = [
    silence,
    garbage,
    scan,
    part_of_client_hello,
    tls_records,
    certificate_tls,
    engine_hello,
    engine_frames,
]


def stranger(rng, ports, limit):
    held = []
    while time.monotonic() < limit:
        sock = socket.socket()
        sock.settimeout(0.2)
        try:
            sock.connect(("127.0.0.1", rng.choice(ports)))
            data = rng.choice(THINGS)(rng, sock)
            if data:
                sock.send(data)
        except OSError:
            pass
        if rng.random() < 0.5:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
            sock.close()
            continue
        held.append(sock)
        if len(held) > HELD:
            held.pop(rng.randrange(len(held))).close()


def main():
    seconds, seed, processes = float(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    ports = [int(text) for text in sys.argv[4:]]
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    children = []
    for number in range(processes):
        pid = os.fork()
        if pid == 0:
            stranger(random.Random(seed + number), ports, time.monotonic() + seconds)
            os._exit(0)
        children.append(pid)
    for pid in children:
        os.waitpid(pid, 0)


if __name__ == "__main__":
    main()
