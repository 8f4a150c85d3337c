"""The client side of the control protocol by hand, for tests that break it. See commd.proto.

Only what the tests need: a frame is 'c' 'd', version, 0, length (u32 little endian) and an envelope
whose one field is the message.
"""

import contextlib
import os
import re
import socket
import struct

from cluster import LATEST, TOP

HELLO, JOIN, LEAVE, ABORT, ADMIN, ARENA_ADD, ARENA_ASK = 1, 2, 3, 4, 5, 7, 9
WELCOME, JOINED, JOIN_FAILED, REFUSED, TABLES, ARENA_ANSWER = 10, 11, 12, 13, 14, 16
with open(os.path.join(TOP, "shm/proto/msg.h")) as _header:
    _text = _header.read()
VERSION = int(re.search(r"\bMSG_VERSION = (\d+)", _text)[1])
OLDEST = int(re.search(r"\bMSG_VERSION_OLDEST = (\d+)", _text)[1])
with open(os.path.join(TOP, "shm/proto/codec.h")) as _header:
    FORMAT = int(re.search(r"\bCODEC_FORMAT = (\d+)", _header.read())[1])


def varint(value):
    out = bytearray()
    while True:
        out.append(value & 0x7F | (0x80 if value > 0x7F else 0))
        value >>= 7
        if not value:
            return bytes(out)


def field(number, value):
    if isinstance(value, int):
        return varint(number << 3) + varint(value)
    value = value.encode() if isinstance(value, str) else value
    return varint(number << 3 | 2) + varint(len(value)) + value


def header(length, version=FORMAT):
    """Of a frame whose envelope has @length bytes."""
    return b"cd" + bytes([version, 0]) + struct.pack("<I", length)


def framed(kind, body):
    envelope = field(kind, body)
    return header(len(envelope)) + envelope


def frame(kind, **fields):
    """frame(JOIN, f1=7, f5="name"): fields by number."""
    return framed(kind, b"".join(field(int(key[1:]), value) for key, value in fields.items()))


def hello(admin=0, version=VERSION):
    return frame(HELLO, f1=version, f2=admin, f3="wire.py")


def join(req, rank, size, name, timeout_ms=0):
    return frame(JOIN, f1=req, f2=rank, f3=size, f4=timeout_ms, f5=name)


def leave(group):
    """@group: the 8 bytes that JOINED had, a fixed64."""
    return framed(LEAVE, b"\x09" + group)


def arena_add(req, arena, size):
    return framed(ARENA_ADD, field(1, req) + b"\x11" + struct.pack("<Q", arena) + field(3, size))


def arena_ask(req, rank, group, arena):
    """@group as for leave()."""
    fixed = b"\x19" + group + b"\x21" + struct.pack("<Q", arena)
    return framed(ARENA_ASK, field(1, req) + field(2, rank) + fixed)


def read_varint(data, at):
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            return value, at


def read_fields(data):
    """{number: last value}"""
    fields, at = {}, 0
    while at < len(data):
        tag, at = read_varint(data, at)
        if tag & 7 == 0:
            fields[tag >> 3], at = read_varint(data, at)
        elif tag & 7 == 1:
            fields[tag >> 3], at = data[at : at + 8], at + 8
        elif tag & 7 == 2:
            length, at = read_varint(data, at)
            fields[tag >> 3], at = data[at : at + length], at + length
        else:
            raise AssertionError(f"wire type {tag & 7}")
    return fields


class Wire:
    """A connection to a commd's socket that sends whatever it is given."""

    def __init__(self, path):
        self.sock = socket.socket(socket.AF_UNIX)
        # waits while the backlog is full, which a socket with a limit does not
        self.sock.connect(path)
        self.sock.settimeout(LATEST)
        self.buffer = b""

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.sock.close()

    def send(self, data):
        """False once the other side has closed."""
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            self.sock.sendall(data)
            return True
        return False

    def read(self):
        """(kind, {number: value}) of the next message, None at the end of the stream."""
        while True:
            if len(self.buffer) >= 8:
                length = struct.unpack("<I", self.buffer[4:8])[0]
                if len(self.buffer) >= 8 + length:
                    envelope = read_fields(self.buffer[8 : 8 + length])
                    self.buffer = self.buffer[8 + length :]
                    ((kind, body),) = envelope.items()
                    return kind, read_fields(body)
            try:
                data = self.sock.recv(65536)
            except ConnectionResetError:
                return None
            if not data:
                return None
            self.buffer += data

    def refusal(self):
        """The text with which commd ends the session."""
        answer = self.read()
        if answer is None:
            return None
        kind, fields = answer
        if kind != REFUSED:
            raise AssertionError(f"message {kind} instead of a refusal: {fields}")
        if self.read() is not None:
            raise AssertionError("commd went on after a refusal")
        return fields[2].decode()
