#!/usr/bin/env python3
"""What a user does who wants commd's attention, or its descriptors, for himself; see test_turns.py.

turns.py SOCKET WHAT NUMBER.. does it, prints a line when it is done, and keeps all connections
until its input ends. It is started as another user, and uses nothing but the protocol.
"""

import contextlib
import os
import resource
import socket
import sys

sys.dont_write_bytecode = True
from wire import ADMIN, frame, hello, join  # noqa: E402

connections = []


def send(sock, data):
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # commd has had enough of it
        sock.sendall(data)


def connect(path, admin=0):
    sock = socket.socket(socket.AF_UNIX)
    sock.connect(path)
    send(sock, hello(admin))
    connections.append(sock)
    return sock


def unread(path, count, rounds, size):
    """@count connections join @rounds groups each, of @size ranks, and read nothing."""
    for _ in range(count):
        connect(path)
    for number in range(rounds):
        for i, sock in enumerate(connections):
            send(sock, join(number, i % size, size, f"unread{number}.{i // size}"))


def left(path, count, each):
    """@count connections join @each groups, and make commd close them with that in the socket."""
    for number in range(count):
        sock = connect(path)
        for i in range(each):
            send(sock, join(i, 0, 1, f"left{number}.{i}"))
        send(sock, b"no message of ours")


def groups(path, count):
    """One connection is the only rank of @count groups; descriptors are closed unseen."""
    sock = connect(path)
    buffer = b""
    joined = -1  # the first is the welcome
    asked = 0
    while joined < count:
        while asked < count and asked - joined < 100:
            sock.sendall(join(asked, 0, 1, f"many{asked}"))
            asked += 1
        buffer += sock.recv(65536)
        while len(buffer) >= 8 and len(buffer) >= 8 + int.from_bytes(buffer[4:8], "little"):
            buffer = buffer[8 + int.from_bytes(buffer[4:8], "little") :]
            joined += 1


def sizes(path, count):
    """One connection joins groups of the largest sizes that there are, and never fills any."""
    sock = connect(path)
    for number in range(count):
        send(sock, join(number, 0, 65536 >> number % 17, f"size{number}"))
        send(sock, join(number, 0, 2048 >> number % 12, f"small{number}"))


def fill(path, count, each):
    """@count connections join @each groups of two, and never fill any; what comes is read."""
    for _ in range(count):
        connect(path)
    for number in range(each):
        for i, sock in enumerate(connections):
            send(sock, join(number, 0, 2, f"fill{i}.{number}"))
            with contextlib.suppress(BlockingIOError):
                while sock.recv(65536, socket.MSG_DONTWAIT):
                    pass


def ask(path, count, times):
    """@count sessions of commctl, or as many as are let in, all ask for the groups @times, and read
    no answer."""
    for _ in range(count):
        connect(path, admin=1)
    for sock in connections:
        with contextlib.suppress(ConnectionResetError):
            sock.recv(1)
    for sock in connections:
        send(sock, frame(ADMIN, f1="groups") * times)


def main():
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    does = {"unread": unread, "left": left, "groups": groups, "ask": ask, "sizes": sizes}
    dict(does, fill=fill)[sys.argv[2]](sys.argv[1], *map(int, sys.argv[3:]))
    print("done", flush=True)
    sys.stdin.read()
    os._exit(0)


main()
