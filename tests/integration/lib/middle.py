"""A network of its own for a test's nodes, with a man in the middle of their data connections, and
with a record of all that goes over it. Needs root, ip and nft.

    with Wire(2, transport) as cluster: middle = cluster.middle() ...
    with Wire(2, transport) as cluster, Dump(cluster.space) as dump: ...

All nodes of a Wire are on the loopback of one network namespace. A Middle has every connection to
an engine redirected to itself, by nft, and connects to whom it was meant for. It passes on what
comes, until it is told to meddle, which it does once; or to hold all back in a direction.
"""

import contextlib
import ctypes
import os
import select
import shutil
import socket
import struct
import subprocess
import threading

from cluster import PORT_BLOCK, Cluster, Skip, check, until

CLONE_NEWNET = 0x40000000
ORIGINAL_DST, MARK = 80, 0x77  # SO_ORIGINAL_DST
PROXY_PORT = 9999
HELLO, ACCEPT = 80, 20  # bytes: of the greeting, each way; the side that connects says ACCEPT
CHUNK = 65536


class Wire(Cluster):
    """Nodes in a network namespace, so that nothing else of this machine is seen or disturbed."""

    def __init__(self, count, transport):
        if os.geteuid() != 0:
            raise Skip("a network namespace needs root")
        for program in ("ip", "nft"):
            if not shutil.which(program):
                raise Skip(f"there is no {program}")
        self.space = f"commd-wire-{os.getpid()}"
        self.inside = contextlib.ExitStack()
        super().__init__(count, {"transport": transport}, start=False)

    def __enter__(self):
        done = subprocess.run(["ip", "netns", "add", self.space], capture_output=True, text=True)
        if done.returncode:
            raise Skip(f"no network namespaces here: {done.stderr.strip()}")
        try:
            subprocess.run(["ip", "-n", self.space, "link", "set", "lo", "up"], check=True)
            return super().__enter__()
        except BaseException:
            self.remove()
            raise

    def middle(self):
        """It outlives the nodes: they would lose their connections with it."""
        return self.inside.enter_context(Middle(self.space, data_ports(self)))

    def remove(self):
        subprocess.run(["ip", "netns", "del", self.space], capture_output=True)

    def end(self):
        super().end()
        try:
            self.inside.close()
        finally:
            self.remove()

    def make_node(self, index, address, port):
        node = super().make_node(index, address, port)
        node.prefix = ["ip", "netns", "exec", self.space]
        return node


def data_ports(cluster):
    return [p for node in cluster.nodes for p in range(node.port + 1, node.port + PORT_BLOCK)]


class Inside(threading.Thread):
    """A thread in a network namespace, while a block runs: open() before it, then serve(), which
    ends when self.ended can be read, and close()."""

    def __init__(self, space):
        super().__init__(daemon=True)
        self.space, self.failed = space, None
        self.ready = threading.Event()
        self.ended, self.wake = os.pipe()

    def run(self):
        try:
            libc = ctypes.CDLL(None, use_errno=True)
            with open(f"/run/netns/{self.space}") as space:
                if libc.setns(space.fileno(), CLONE_NEWNET):
                    raise OSError(ctypes.get_errno(), "setns")
            self.open()
            self.ready.set()
            self.serve()
        except BaseException as error:  # noqa: BLE001
            self.failed = error
        finally:
            self.ready.set()
            self.close()

    def __enter__(self):
        self.start()
        self.ready.wait()
        if self.failed:
            raise self.failed
        return self

    def __exit__(self, *error):
        os.write(self.wake, b"x")
        self.join()
        os.close(self.ended)
        os.close(self.wake)
        if self.failed:
            raise self.failed


class Dump(Inside):
    """All that goes over the network, by port. A dump that lost packets proves nothing."""

    def __init__(self, space, device="lo"):
        super().__init__(space)
        self.device, self.bytes, self.lost = device, {}, 0

    def open(self):
        self.socket = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(0x0800))
        self.socket.setsockopt(socket.SOL_SOCKET, 33, 1 << 28)  # SO_RCVBUFFORCE
        self.socket.bind((self.device, 0x0800))

    def serve(self):
        while self.ended not in select.select([self.socket, self.ended], [], [])[0]:
            self.take()
        while select.select([self.socket], [], [], 0)[0]:
            self.take()
        self.lost = struct.unpack("II", self.socket.getsockopt(263, 6, 8))[1]  # PACKET_STATISTICS

    def take(self):
        packet, address = self.socket.recvfrom(1 << 17)
        ip = packet[14:]
        twice = self.device == "lo" and address[2] == socket.PACKET_OUTGOING
        if twice or ip[9] != socket.IPPROTO_TCP:
            return
        tcp = ip[(ip[0] & 15) * 4 : struct.unpack_from("!H", ip, 2)[0] or None]
        for port in struct.unpack_from("!HH", tcp):
            self.bytes.setdefault(port, []).append(tcp[(tcp[12] >> 4) * 4 :])

    def close(self):
        self.socket.close()

    def of(self, ports):
        """What had one of @ports at one of its ends; after the block."""
        check(not self.lost, f"{self.lost} packets are missing in the dump")
        return b"\n".join(b"".join(self.bytes.get(port, [])) for port in ports)


class Stream:
    """A connection through a Middle: @ends are the sockets of the side that connected, and of the
    other one; @passed the bytes that each of them has sent."""

    def __init__(self, ends):
        self.ends, self.passed, self.hello = ends, [0, 0], [b"", b""]


class Middle(Inside):
    def __init__(self, space, ports):
        super().__init__(space)
        self.ports, self.lock, self.plan, self.done = ports, threading.Lock(), None, 0
        self.streams, self.hellos, self.targets = [], [], set()
        self.held = None  # the direction in which nothing is passed on, though it is acknowledged

    def open(self):
        self.listener = socket.create_server(("127.0.0.1", PROXY_PORT), backlog=256)
        ports = ", ".join(map(str, self.ports))
        rules = (
            "table ip middle {\nchain c {\ntype nat hook output priority -100\n"
            f"meta mark != {MARK} tcp dport {{ {ports} }} redirect to :{PROXY_PORT}\n}}\n}}\n"
        )
        nft = ["ip", "netns", "exec", self.space, "nft", "-f", "-"]
        done = subprocess.run(nft, input=rules, capture_output=True, text=True)
        if done.returncode:
            raise Skip(f"nft cannot redirect here: {done.stderr.strip()}")

    def serve(self):
        while True:
            sockets = {end: s for s in self.streams for end in s.ends}
            ready = select.select([self.listener, self.ended, *sockets], [], [])[0]
            if self.ended in ready:
                return
            for one in ready:
                if one is self.listener:
                    self.accept()
                elif sockets[one] in self.streams:
                    self.pass_on(sockets[one], sockets[one].ends.index(one))

    def close(self):
        for stream in list(self.streams):
            self.drop(stream)
        self.listener.close()

    def accept(self):
        here, _ = self.listener.accept()
        port, host = struct.unpack_from("!H4s", here.getsockopt(0, ORIGINAL_DST, 16), 2)
        there = socket.socket()
        there.setsockopt(socket.SOL_SOCKET, socket.SO_MARK, MARK)
        try:
            there.connect((socket.inet_ntoa(host), port))
        except OSError:
            here.close()
            return
        for end in (here, there):
            end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.targets.add(port)
        self.streams.append(Stream([here, there]))

    def drop(self, stream):
        self.streams.remove(stream)
        for end in stream.ends:
            end.close()

    def pass_on(self, stream, way):
        try:
            data = stream.ends[way].recv(CHUNK)
            if data:
                stream.ends[not way].sendall(self.changed(stream, way, data))
        except OSError:
            data = b""
        if not data:
            self.drop(stream)

    def changed(self, stream, way, data):
        at = stream.passed[way]
        stream.passed[way] += len(data)
        if at < HELLO:
            stream.hello[way] += data[: HELLO - at]
        with self.lock:
            if at < HELLO <= stream.passed[way]:
                self.hellos.append(stream.hello[way])
            if way == self.held and at >= HELLO + ACCEPT:
                return b""
            if not self.plan or way != self.plan[0] or at < self.plan[1]:
                return data
            how, self.plan = self.plan[2], None
            self.done += 1
            return how(data, stream)

    def meddle(self, way, at, how):
        """Once, by how(bytes, stream), with what comes in that direction behind the first @at
        bytes of a stream; 0: from the side that connected."""
        with self.lock:
            self.plan = (way, at, how)

    def until_done(self):
        until(lambda: self.done, "it has meddled")


class Stranger(Inside):
    """Says what it likes to whoever listens, over and over."""

    def __init__(self, space, ports, words):
        super().__init__(space)
        self.ports, self.words, self.said, self.heard = ports, words, 0, set()

    def open(self):
        pass

    def serve(self):
        while not select.select([self.ended], [], [], 0)[0]:
            for port in self.ports:
                for word in self.words:
                    self.say(port, word)

    def say(self, port, word):
        with socket.socket() as one:
            one.setsockopt(socket.SOL_SOCKET, socket.SO_MARK, MARK)
            one.settimeout(0.02)
            try:
                one.connect(("127.0.0.1", port))
                one.sendall(word)
                self.said += 1
                self.heard.add(one.recv(HELLO))
            except OSError:
                pass

    def close(self):
        pass
