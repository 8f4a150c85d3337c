"""The faults, and what is promised of each. A row runs one fault again and again in one cell (a
layout). run() yields None when a fault has been done, and later, maybe at the end, what was
measured of it, in milliseconds. What does not keep to the promise is an exception.

Three kinds: faults that nobody may notice, under a job that goes on from the first to the last;
faults of which each survivor must be told, after which a job begins anew; and those after which the
survivors go on in the same group, in its next epoch.
"""

import itertools
import json
import math
import os
import signal
import sys
import time

from cluster import TOP, Cluster, check, equal, now, run, running, until
from keeping import commd_pid, serves
from place import WINDOW, Job, connections, ready, reset

JOIN_AGAIN = "until a join works again"
TOLD = "until survivors are told"
DONE = "until it is done"
REPEATED = "until the operation is repeated"
BACK = "until a new process takes part"
MANY = 10**6
KINDS = [  # of operations, in lib/recovering.py
    "all_reduce", "reduce", "broadcast", "all_gather", "reduce_scatter", "all_to_all", "gather",
    "scatter", "barrier", "registered", "messages", "works",
]  # fmt: skip
COUNTS = [16, 262144]  # elements of 4 bytes


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


class EngineReplaced(Row):
    """Without ranks that join and leave: while groups end the engine stays."""

    name, fault, full = "reload", "another engine takes over, after a reload", 50

    def applies(self, layout):
        return layout[0] > 1

    def promise(self, layout):
        return "groups go on"

    def run(self, place, runs):
        job = Job(place, "g", place.layout_ranks())
        strikes, channels = [], {}
        for _ in range(runs):
            place.rest()
            node = place.rng.choice(place.nodes)
            old = until(node.engine_pid, "an engine")
            channels[node.name] = 5 - channels.get(node.name, 2)  # 3, 2, 3 ...
            node.write_config(transport={"channels": str(channels[node.name])})
            node.ctl("reload")
            until(lambda node=node, old=old: node.engine_pid() != old, "the engine ends")
            strikes.append(now())
            yield None
            until(lambda node=node, old=old: node.engine_pid() not in (0, old), "the next one")
            place.wait_linked()
            job.goes_on()
        place.rest()
        job.finish()
        for at in strikes:
            yield job.pauses(at)


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

        def taken(file):
            file.seek(0)
            return MANY - int(file.read())

        for number in range(3):

            def counted(request):
                files = [self.arm(place, node, MANY) for node in place.nodes]
                request()
                begin = now()  # nobody waits for commd to hear that ranks leave
                while any(taken(file) == 0 for file in files) and now() < begin + 5:
                    time.sleep(0.05)
                for index, file in enumerate(files):
                    os.unlink(place.die_file(place.nodes[index]))
                    most[index] = max(most[index], taken(file))
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
            measured = self.outcome(place, job, at)
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

    def outcome(self, place, job, at):
        measured = {TOLD: (max(self.told(job)) - at) * 1000}
        job.leave()
        return measured

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


def went_on(place, ranks, node, old):
    """Has none of them been told of an engine's death when the next one is there?"""
    settled = until(lambda: ready(ranks) or node.engine_pid() not in (0, old),
                    "a new engine, or errors")  # fmt: skip
    if settled is True:
        place.wait_linked()
        time.sleep(0.5)
    return not ready(ranks)


class EngineKilled(Told):
    """Groups of which nothing is on the wire just then go on. A group on one node, which does not
    need it, works beside. A node alone has none."""

    name, fault, full = "engine", "an engine is killed (-9)", 50

    def applies(self, layout):
        return layout[0] > 1

    def promise(self, layout):
        return "ENGINE_LOST on each rank of groups over it, or they go on; joins wait"

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

    def outcome(self, place, job, at):
        self.went_on = went_on(place, job.ranks, self.node, self.old)
        if not self.went_on:
            return super().outcome(place, job, at)
        job.finish()
        return {}

    def judge(self, error):
        named(error, ["ENGINE_LOST"], self.node.name)

    def recover(self, place, job, at, name):
        joined = place.new_group_works(name, job.ranks)
        until(lambda: self.node.engine_pid() not in (0, self.old), "a new engine")
        place.wait_linked()
        return {} if self.went_on else {JOIN_AGAIN: (joined - at) * 1000}


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


# ---- the group goes on ---------------------------------------------------------------------------


class Recovers(Row):
    """Under each kind of operation in turns. strike() does it; who is left is told, goes on in the
    next epoch, and does the operation again; every result is verified."""

    full = 170
    policy = "shrink"
    what = REPEATED
    tells = True
    last_epoch = 2

    def begin(self):
        self.cases = itertools.cycle([(kind, count) for count in COUNTS for kind in KINDS])

    def left_of(self, ranks):
        """So many go on, in the end."""
        return len(ranks) - 1

    def case(self, place):
        for _ in range(place.rng.randrange(len(KINDS))):  # few runs do not begin with the same
            next(self.cases)
        return next(self.cases)

    def run(self, place, runs):
        ranks = place.layout_ranks()
        for number in range(runs):
            name, (kind, count) = f"g{number}", self.case(place)
            Cluster.join(name, ranks)
            for rank in ranks:
                rank.start("recovering", name=name, kind=kind, count=count, policy=self.policy,
                           left=self.left_of(ranks))  # fmt: skip
            for rank in ranks:
                check("started" in rank.answer(), f"{kind} has started")
            time.sleep(0.05 + 0.2 * place.rng.random())
            at = self.strike(place, ranks)
            yield None
            self.come(name, kind, count)
            for rank in self.left:
                check("told" in rank.answer(), f"{kind} of {count} has failed")
            told = [self.done(rank, kind, count) for rank in self.left]
            for error in itertools.chain(*(answer["errors"] for answer in told)):
                self.judge(error, kind)
            all_of = told + [self.done(rank, kind, count) for rank in self.new]
            equal(sorted(one["rank"] for one in all_of), list(range(len(all_of))))
            equal({one["size"] for one in all_of}, {len(all_of)})
            epochs = {one["number"] for one in all_of}
            check(len(epochs) == 1 and 2 <= max(epochs) <= self.last_epoch, f"epochs {epochs}")
            ranks = self.again(place, name)
            said = {TOLD: (max(one["told"] for one in told) - at) * 1000} if self.tells else {}
            yield {**said, self.what: (max(one["again"] for one in all_of) - at) * 1000}

    def done(self, rank, kind, count):
        answer = rank.answer()
        check("ok" in answer, f"{kind} of {count}: {answer.get('error')}")
        return answer["ok"]

    def come(self, name, kind, count):
        self.new = []


class RankRecovered(Recovers):
    name, fault = "shrink", "a rank is killed (-9) in an operation; the others go on"

    def promise(self, layout):
        return "RANK_LOST on each survivor; they repeat it in a smaller group"

    def strike(self, place, ranks):
        self.rank = place.rng.randrange(len(ranks))
        self.lost, self.left = ranks[self.rank], [r for r in ranks if r is not ranks[self.rank]]
        place.all_ranks.remove(self.lost)
        return self.lost.kill()

    def judge(self, error, kind):
        if kind == "messages" and error["code"] == "ABORTED":  # by one that was told before
            return
        named(error, ["RANK_LOST"], self.lost.node.name, rank=self.rank, pid=self.lost.pid)

    def again(self, place, name):
        all_do(self.left, "leave", name=name)
        ranks = list(self.left)
        ranks.insert(self.rank, place.rank(self.lost.node.index))
        return ranks


class TwoRanksRecovered(RankRecovered):
    """The second dies while the others are told of the first, agree, or have just gone on."""

    name, fault = "again", "a second rank is killed (-9) while the others recover"
    tells = False  # they may have been told of the first alone
    last_epoch = 3

    def applies(self, layout):
        return layout[0] * layout[1] > 2

    def left_of(self, ranks):
        return len(ranks) - 2

    def strike(self, place, ranks):
        super().strike(place, ranks)
        self.ranks, self.first = ranks, self.lost
        time.sleep(0.01 * place.rng.random())
        self.lost = self.left.pop(place.rng.randrange(len(self.left)))
        place.all_ranks.remove(self.lost)
        return self.lost.kill()

    def judge(self, error, kind):
        if kind == "messages" and error["code"] == "ABORTED":
            return
        lost = {rank.pid: rank for rank in (self.first, self.lost)}
        check(error["pid"] in lost, f"no process that was killed: {error}")
        named(error, ["RANK_LOST"], lost[error["pid"]].node.name)

    def again(self, place, name):
        all_do(self.left, "leave", name=name)
        return [rank if rank in self.left else place.rank(rank.node.index) for rank in self.ranks]


class RankRejoined(RankRecovered):
    name, fault = "rejoin", "a rank is killed (-9) in an operation; a new one takes its seat"
    policy = "wait"
    what = BACK

    def left_of(self, ranks):
        return len(ranks)

    def promise(self, layout):
        return "RANK_LOST on each survivor; all repeat it in a group of the same size"

    def strike(self, place, ranks):
        at = super().strike(place, ranks)
        self.new = [place.rank(self.lost.node.index)]
        return at

    def come(self, name, kind, count):
        self.new[0].start("comes", name=name, rank=self.rank, kind=kind, count=count)

    def again(self, place, name):
        ranks = list(self.left)
        ranks.insert(self.rank, self.new[0])
        all_do(ranks, "leave", name=name)
        return ranks


class RankJoins(Row):
    """Before it has asked, while the nodes agree, or when it has its group: then the others are
    told by their first operation, and join again."""

    name, fault, full = "join", "a rank is killed (-9) in a join; a new one joins in its place", 50

    def promise(self, layout):
        return "joins wait for the new one, or RANK_LOST on each"

    def run(self, place, runs):
        ranks = place.layout_ranks()
        for number in range(runs):
            join = dict(name=f"g{number}", size=len(ranks))
            victim = place.rng.randrange(len(ranks))
            lost = ranks[victim]
            for rank in place.rng.sample(range(len(ranks)), len(ranks)):
                ranks[rank].start("join" if rank == victim else "joining", rank=rank, **join)
            time.sleep(0.005 * place.rng.random())
            place.all_ranks.remove(lost)
            at = lost.kill()
            yield None
            ranks[victim] = place.rank(lost.node.index)
            ranks[victim].start("joining", rank=victim, **join)
            answers = [rank.finish() for rank in ranks]
            for error in itertools.chain(*(answer["errors"] for answer in answers)):
                who = victim
                if "left the group" in error["message"]:  # since it had been told before this one
                    who = error["rank"]
                    check(who != victim, f"who was killed has not left: {error}")
                rank = lost if who == victim else ranks[who]
                node, text = rank.node.name, f"rank {who} (pid {rank.pid} on node {rank.node.name})"
                check(text in error["message"], f"no {text}: {error}")
                if "before the group opened" in error["message"]:  # another node may have said so
                    node = error["node"]
                named(error, ["RANK_LOST"], node)
            yield {BACK: (max(answer["again"] for answer in answers) - at) * 1000}


class EngineRecovered(Recovers):
    """A group of which nothing was on the wire has gone on when the next engine is there: then
    that one is killed. Each has served for half a second, so none waits for its start."""

    name, fault, full = "repair", "an engine is killed (-9) in an operation; all go on", 50

    def applies(self, layout):
        return layout[0] > 1

    def promise(self, layout):
        return "ENGINE_LOST on each rank; all repeat it in the same group"

    def left_of(self, ranks):
        return len(ranks)

    def begin(self):
        super().begin()
        self.killed = {}

    def strike(self, place, ranks):
        self.node, self.left = place.rng.choice(place.nodes), ranks
        while True:
            place.rest(self.killed.get(self.node.name, 0))
            self.old, at = until(self.node.engine_pid, "an engine"), now()
            self.killed[self.node.name] = at
            os.kill(self.old, signal.SIGKILL)
            if not went_on(place, ranks, self.node, self.old):
                return at

    def judge(self, error, kind):
        if kind == "messages" and error["code"] == "ABORTED":
            return
        named(error, ["ENGINE_LOST"], self.node.name)

    def again(self, place, name):
        all_do(self.left, "leave", name=name)
        until(lambda: self.node.engine_pid() not in (0, self.old), "a new engine")
        place.wait_linked()
        return self.left


class Reconfigured(Row):
    """Nothing is lost. Beside torch's gloo, which has to make its group anew, where torch is."""

    name, fault = "reconfigure", "none: all ranks of a group go on in its next epoch"

    def promise(self, layout):
        return "the same ranks in a new epoch"

    def run(self, place, runs):
        ranks = place.layout_ranks()
        Cluster.join("g", ranks)
        for rank in ranks:
            rank.start("reconfigure", name="g", times=runs)
        took = [rank.finish() for rank in ranks]
        all_do(ranks, "leave", name="g")
        gloo = self.gloo(len(ranks), runs)
        for number, ms in enumerate(map(max, zip(*took))):
            yield None
            yield {"until all are there": ms, **{what: of[number] for what, of in gloo.items()}}

    def gloo(self, size, times):
        python = os.path.join(TOP, ".venv/bin/python")
        program = os.path.join(os.path.dirname(os.path.abspath(__file__)), "gloo_ranks.py")
        if not os.path.exists(python):
            return {}
        done = run([python, program, str(size), str(times)], 100)
        if done.returncode:  # its failure is none of commd's
            last = done.stderr.strip().splitlines()[-1:]
            print(f"gloo is left out: {''.join(last)}", file=sys.stderr)
            return {}
        return json.loads(done.stdout.splitlines()[-1])


ROWS = [
    CommdKilled(),
    *(CommdKilledIn(what) for what in CommdKilledIn.steps),
    CommdRestarted(),
    KeeperKilled(),
    EngineKilled(),
    EngineReplaced(),
    ConnectionsReset(),
    RankKilled(),
    RankJoins(),
    RankRecovered(),
    TwoRanksRecovered(),
    RankRejoined(),
    EngineRecovered(),
    Reconfigured(),
]
