"""The faults, and what is promised of each. A row runs one fault again and again in one cell (a
layout). run() yields None when a fault has been done, and later, maybe at the end, what was
measured of it, in milliseconds. What does not keep to the promise is an exception.

Two kinds: faults that nobody may notice, under a job that goes on from the first to the last, and
faults of which each survivor must be told, after which a job begins anew.
"""

import math
import os
import signal
import time

from cluster import check, equal, now, running, until
from keeping import commd_pid, serves
from place import WINDOW, Job, connections, reset

JOIN_AGAIN = "until a join works again"
TOLD = "until survivors are told"
DONE = "until it is done"
MANY = 10**6


def all_do(ranks, do, **arguments):
    for rank in ranks:
        rank.start(do, **arguments)
    return all_done(ranks, do)


def all_done(ranks, do):
    """The time when the last one was."""
    answers = [rank.answer() for rank in ranks]
    for answer in answers:
        check("ok" in answer, f"{do}: {answer.get('error')}")
    return max(answer["at"] for answer in answers)


def named(error, codes, node, **more):
    """The error has one of these codes and names who was lost."""
    check(error["code"] in codes, f"{error['code']} instead of {' or '.join(codes)}: {error}")
    equal(error["node"], node, f"the node that the error names: {error}")
    check(node in error["message"], f"no {node} in the text: {error}")
    equal({key: error[key] for key in more}, more, f"who the error names: {error}")


class Row:
    """@name for --only, @fault and promise() for the reader, @full: how often with --full."""

    dies = False
    full = 50

    def begin(self):
        """Of a cell."""

    def applies(self, layout):
        return True

    def promise(self, layout):
        return "groups go on, joins wait"


class Unnoticed(Row):
    """strike() does it and says when. What may take some time to be as before is in settle()."""

    measures_joins = True

    def run(self, place, runs):
        job = Job(place, "g", place.layout_ranks())
        place.start_controls()
        strikes = []
        settled = now()
        for number in range(runs):
            place.rest(settled)
            at = self.strike(place, number)
            yield None
            joined = place.joined_after(at)
            self.settle(place)
            settled = now()
            job.goes_on()
            strikes.append((at, joined))
        place.rest()
        place.joined_after(now())
        place.finish_controls()
        job.finish()
        for at, joined in strikes:
            again = {JOIN_AGAIN: (joined - at) * 1000} if self.measures_joins else {}
            yield {**job.pauses(at), **again}

    def settle(self, place):
        pass


class CommdKilled(Unnoticed):
    name, fault, full = "killed", "commd is killed (-9), at random", 100
    signo = signal.SIGKILL

    def strike(self, place, number):
        self.node = place.rng.choice(place.nodes)
        self.old = serves(self.node)
        at = now()
        os.kill(self.old, self.signo)
        return at

    def settle(self, place):
        serves(self.node, self.old)
        place.wait_linked()


class CommdRestarted(CommdKilled):
    name, fault, full = "restarted", "commd is restarted (SIGUSR1)", 50
    signo = signal.SIGUSR1


class ConnectionsReset(Unnoticed):
    name, fault, full = "connections", "a data connection is reset", 100
    measures_joins = False

    def applies(self, layout):
        return layout[0] > 1

    def promise(self, layout):
        return "groups go on"

    def mends(self, place):
        return sum(row["mends"] or 0 for node in place.nodes for row in node.ctl("links")["links"])

    def strike(self, place, number):
        self.before = self.mends(place)
        there = connections(place.rng.choice(place.nodes).engine_pid())
        check(there, "an engine has no connection")
        at = now()
        reset(place.rng.choice(there))
        for sock in there:
            sock.close()
        return at

    def settle(self, place):
        until(lambda: self.mends(place) > self.before, "commctl links counts it")


class CommdKilledIn(Row):
    """In the steps of one request, under a job. A step is a system call, before it or after it."""

    dies, full = True, math.inf
    steps = {
        "join": "killed in a step of a join",
        "subgroup": "killed in a step of a subgroup",
        "registration": "killed in a step of a registration",
        "leave": "killed in a step of leaving",
    }

    def __init__(self, what):
        self.what, self.name = what, f"in-{what}"
        self.fault = f"commd is {self.steps[what]}"

    def begin(self):
        self.todo = None

    def request(self, what, ranks, name):
        if what == "join":
            all_do(ranks, "connect", context="x")
            for number, rank in enumerate(ranks):
                rank.start("join", name=name, rank=number, size=len(ranks), context="x")
            return all_done(ranks, "join")
        if what == "subgroup":
            return all_do(ranks, "split", name=name, new=name + "s", colour=0, key=0)
        if what == "registration":
            all_do(ranks, "alloc", key=name, size=1 << 20, context="x")
            return all_do(ranks, "registered", name=name, send=name, recv=name, count=60000)
        for group in (name + "s", name):
            all_do(ranks, "leave", name=group)
        all_do(ranks, "free", key=name)
        return all_do(ranks, "disconnect", context="x")

    def round(self, ranks, name, act):
        """All requests once; the one that is asked for by @act. Returns what that returned."""
        result = None
        for what in self.steps:
            request = lambda what=what: self.request(what, ranks, name)  # noqa: E731
            if what == self.what:
                result = act(request)
            else:
                request()
        return result

    def arm(self, place, node, number):
        """The file, open; its name is removed when commd has made so many steps."""
        path = place.die_file(node)
        file = open(path + ".new", "w+")
        file.write(str(number))
        file.flush()
        os.rename(path + ".new", path)
        return file

    def count(self, place, ranks):
        """The steps of the request on each node, which is the group's home, or is not."""
        most = [0] * len(place.nodes)
        for number in range(3):

            def counted(request):
                files = [self.arm(place, node, MANY) for node in place.nodes]
                request()
                for index, file in enumerate(files):
                    os.unlink(place.die_file(place.nodes[index]))
                    file.seek(0)
                    most[index] = max(most[index], MANY - int(file.read()))
                    file.close()

            self.round(ranks, f"count{number}", counted)
        check(min(most) > 0, f"steps on the nodes: {most}")
        return most

    def die(self, place, node, step, request):
        """When commd died and when the request was done; None: it did not come to that step."""
        old, offset = serves(node), time.time() - now()
        with self.arm(place, node, step) as file:
            done, begin = request(), now()
            # nobody waits for commd to hear that ranks leave
            while os.fstat(file.fileno()).st_nlink and now() < begin + 0.2:
                time.sleep(0.005)
            entry = os.fstat(file.fileno())
        if entry.st_nlink:
            os.unlink(place.die_file(node))
            equal(commd_pid(node), old, "commd died of something else")
            return None
        at = entry.st_ctime - offset  # its last name was removed then
        serves(node, old)
        return at, done

    def choose(self, place, ranks, runs):
        """Each step of each node; or as many as are wanted, one of each part."""
        counts = self.count(place, ranks)
        if runs == math.inf:
            return [(index, step + 1) for index, most in enumerate(counts) for step in range(most)]
        chosen = []
        for number in range(runs):
            index = number % len(counts)
            part = (number + place.rng.random()) / runs
            chosen.append((index, 1 + int(part * counts[index])))
        return chosen

    def run(self, place, runs):
        ranks = [place.rank(node) for node in place.control_places()]
        if self.todo is None:
            self.todo = self.choose(place, ranks, runs)
        job = Job(place, "g", place.layout_ranks())
        strikes, tries = [], 0
        while self.todo:
            index, step = self.todo.pop()
            place.rest()
            act = lambda request: self.die(place, place.nodes[index], step, request)  # noqa
            try:
                died = self.round(ranks, f"r{tries}", act)
            except Exception:
                yield None
                raise
            place.wait_linked()
            job.goes_on()
            tries += 1
            if died:
                strikes.append(died)
                yield None
            elif runs != math.inf and step > 1:  # the home was elsewhere, which takes fewer steps
                self.todo.append((index, place.rng.randrange(1, step)))
        place.rest()
        job.finish()
        for at, done in strikes:
            yield {**job.pauses(at), DONE: max(0, done - at) * 1000}


class Told(Row):
    """strike() does it; survivors must have an error that judge() takes; then all is as before."""

    messages = True

    def run(self, place, runs):
        ranks = place.layout_ranks()
        for number in range(runs):
            job = Job(place, f"g{number}", ranks, self.messages)
            beside = self.beside(place, number)
            place.rest()
            at = self.strike(place, job, number)
            yield None
            measured = {TOLD: (max(self.told(job)) - at) * 1000}
            job.leave()
            measured.update(self.recover(place, job, at, f"after{number}"))
            if beside:
                time.sleep(max(0, at + WINDOW - now()))
                beside.finish()
                pauses = beside.pauses(at)
                measured.update({f"one-node group: {key}": ms for key, ms in pauses.items()})
                for rank in beside.ranks:
                    place.all_ranks.remove(rank)
                    rank.close()
            ranks = self.again(place, job)
            yield measured

    def told(self, job):
        errors = [rank.error() for rank in job.ranks]
        for error in errors:
            self.judge(error)
        return [error["at"] for error in errors]

    def beside(self, place, number):
        return None

    def again(self, place, job):
        return job.ranks


class RankKilled(Told):
    name, fault, full = "rank", "a rank is killed (-9)", 50
    messages = False  # which between others go on

    def promise(self, layout):
        return "RANK_LOST on each survivor; new groups work"

    def strike(self, place, job, number):
        self.rank = place.rng.randrange(len(job.ranks))
        self.lost = job.ranks.pop(self.rank)
        place.all_ranks.remove(self.lost)
        return self.lost.kill()

    def judge(self, error):
        named(error, ["RANK_LOST"], self.lost.node.name, rank=self.rank, pid=self.lost.pid)

    def recover(self, place, job, at, name):
        place.new_group_works(name, job.ranks)
        return {}

    def again(self, place, job):
        job.ranks.insert(self.rank, place.rank(self.lost.node.index))
        return job.ranks


class EngineKilled(Told):
    """A group on one node, which does not need it, works beside. A node alone has none."""

    name, fault, full = "engine", "an engine is killed (-9)", 50

    def applies(self, layout):
        return layout[0] > 1

    def promise(self, layout):
        return "ENGINE_LOST on each rank of groups over it; others go on, joins wait"

    def victim(self, place, number):
        return place.nodes[number % len(place.nodes)]

    def beside(self, place, number):
        node = self.victim(place, number).index
        return Job(place, f"beside{number}", [place.rank(node), place.rank(node)])

    def strike(self, place, job, number):
        self.node = self.victim(place, number)
        self.old = until(self.node.engine_pid, "an engine")
        at = now()
        os.kill(self.old, signal.SIGKILL)
        return at

    def judge(self, error):
        named(error, ["ENGINE_LOST"], self.node.name)

    def recover(self, place, job, at, name):
        joined = place.new_group_works(name, job.ranks)
        until(lambda: self.node.engine_pid() not in (0, self.old), "a new engine")
        place.wait_linked()
        return {JOIN_AGAIN: (joined - at) * 1000}


class KeeperKilled(Told):
    """commd ends with it, and its node is lost to the others until somebody starts it again."""

    name, fault, full = "keeper", "a keeper is killed (-9); commd started anew later", 20

    def promise(self, layout):
        if layout[0] == 1:
            return "groups go on, unknown to the new commd; new groups work"
        return "NODE_LOST on each rank of groups over it; new groups work"

    def strike(self, place, job, number):
        self.node = place.nodes[number % len(place.nodes)]
        commd, engine = serves(self.node), self.node.engine_pid()
        at = self.node.kill()
        self.gone = [pid for pid in (commd, engine) if pid]
        return at

    def judge(self, error):
        named(error, ["NODE_LOST"], self.node.name)

    def run(self, place, runs):
        if place.node_count > 1:
            yield from super().run(place, runs)
            return
        ranks = place.layout_ranks()
        for number in range(runs):
            job = Job(place, f"g{number}", ranks)
            place.rest()
            at = self.strike(place, job, number)
            yield None
            self.start_again(place)
            time.sleep(max(0, at + WINDOW - now()))
            job.goes_on()
            job.finish()
            place.new_group_works(f"after{number}", ranks)
            yield job.pauses(at)

    def start_again(self, place):
        until(lambda: not any(running(pid) for pid in self.gone), "commd and its engine end")
        equal(sorted(os.listdir(self.node.home)), ["commd.log", "commd.yaml"], "left by commd")
        place.start_node(self.node)
        serves(self.node)
        place.wait_linked()

    def recover(self, place, job, at, name):
        self.start_again(place)
        place.new_group_works(name, job.ranks)
        return {}


ROWS = [
    CommdKilled(),
    *(CommdKilledIn(what) for what in CommdKilledIn.steps),
    CommdRestarted(),
    KeeperKilled(),
    EngineKilled(),
    ConnectionsReset(),
    RankKilled(),
]
