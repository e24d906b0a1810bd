"""The workers of one process group while they live: started, watched, stopped, and nothing left behind.

What it promises: workers never outlive this process (PDEATHSIG), nothing that they started outlives `supervise` (this
process is their subreaper), a death is noticed at once. One thread only, because PDEATHSIG follows the thread
that forked. Standard library only: see `launch.agent`.

The order in force says who belongs to the group. A worker whose slot is not in it any more leaves, and its end says
nothing of the others. Standby workers, which rank 0 asks for before the group grows, belong to it once their slot does.
"""

from __future__ import annotations

import logging
import os
import signal
import time
import traceback
from collections.abc import Sequence
from math import inf
from mmap import mmap
from typing import NamedTuple

from elastic_core.errors import InfrastructureError, UserError
from elastic_core.host import process
from elastic_core.host.exits import ExitCode
from elastic_core.host.messages import (
    CoordinatorHeard,
    GroupStop,
    LeaseHeld,
    OrderInForce,
    ServingState,
    SlotId,
    SpawnPlan,
    StandbyRequest,
    WorkerProcess,
    WorkerProcesses,
    WorkersByRank,
    WorkerSettings,
)
from elastic_core.host.network import namespaces
from elastic_core.host.process import ProcessId
from elastic_core.host.rundir import RUN_DIR, RunDir
from elastic_core.host.worker_user.dropping import drop
from elastic_core.host.workers import CONTROL_SOCKET, WORKER, WorkerCommand, worker_command
from elastic_core.launch import fork_server
from elastic_core.launch.worker_logs import parts
from elastic_core.launch.workers import control_relay
from elastic_core.launch.workers.left_slots import LeftSlots, Telling
from elastic_core.launch.workers.strays import EndedWorkers

log = logging.getLogger(__name__)

SERVING_SECONDS = 60.0  # more, that those have who leave and still give the others what they hold
LEASE_MARGIN = 5.0  # past the end of a lease that rank 0 should not have lived to see
PEER_SECONDS = 5.0  # that the others have to end by themselves after one has failed: they may sit in a collective
TICK_SECONDS = 1.0  # between looks at the run dir
STRAY_SECONDS = 0.02  # the same, while what workers that left had started is being ended
SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGCHLD)


class GroupOutcome(NamedTuple):
    """How the group ended: its workers by number, which is their rank, but after a resize in place.

    `order` holds them by time of death, `killed` those that the agent had to kill.
    """

    codes: dict[int, int]  # by worker, negative for a signal; without those that had left, or never belonged to it
    order: list[int]
    killed: set[int]
    stop_grace: float | None  # seconds, when the group was asked to stop
    failure: str = ""  # why the agent could not go on, or ended the group by itself
    never_began: bool = False  # it was asked to stop while it was being started


class Group:
    """The workers while they live. Its clock is monotonic seconds."""

    def __init__(self, run_dir: RunDir, plan: SpawnPlan, token: mmap | None = None) -> None:
        """`token`: as `supervise`."""
        self.run_dir = run_dir
        self.plan = plan
        self.pids: dict[int, int] = {}  # of living workers: pid -> number
        self.slots: dict[int, SlotId] = {}  # of all workers so far, by number
        self.processes: dict[int, ProcessId] = {}  # the same
        self.standby: set[int] = set()  # living workers that wait for their slot to be the group's
        self.dead_standby: dict[int, int] = {}  # workers that died while they waited: number -> code
        self.serving: set[int] = set()  # of those that leave, those from which the group takes what they hold
        self.draining: dict[int, float] = {}  # workers whose slot is the group's no more: number -> when to kill them
        self.stopped: dict[int, float] = {}  # members that a signal has stopped: number -> since when
        self.ended = EndedWorkers()
        self.left = LeftSlots()
        self.telling = Telling(run_dir, token) if token is not None else None
        self.standby_request: int | None = None  # the last one that was fulfilled
        self.relay: int | None = None  # pid of the control relay, where workers have a network namespace
        self.next_relay = 0.0  # when another may be started
        self.by_rank: tuple[int, ...] = ()  # numbers of the members, as written down last
        self.first: tuple[int | None, float] = None, 0.0  # the worker here that is rank 0, and since when
        self.log_bytes = plan.log_bytes
        self.outcome = GroupOutcome({}, [], set(), None)
        self.heard = time.monotonic()  # when the coordinator spoke last, where the group has one
        self.deadline = inf  # when to kill whoever is left
        self.ending = False  # nothing is started any more

    def spawn(self, slots: Sequence[SlotId]) -> None:
        self._keep_relay(time.monotonic())
        for number, slot in enumerate(slots):
            if self._is_here(slot):
                self._start(number, slot, len(slots))
        if self.plan.node:
            self._start_standby()  # they may be all that this node has of the group
        self._record()

    def watch(self) -> None:
        """Return when every worker is gone."""
        while self.pids:
            now = time.monotonic()
            tick = STRAY_SECONDS if self.ended.busy else TICK_SECONDS
            wake = min(now + tick, self.deadline, *self.draining.values())
            received = signal.sigtimedwait(SIGNALS, max(0.0, wake - now))
            if received and received.si_signo != signal.SIGCHLD:
                self._ask_to_stop()
            order = self.run_dir.read(OrderInForce)
            if order is None:
                log.warning("the run dir has vanished: ending the workers")
                self._end_by(-inf)
            else:
                self._update_members(set(order.slots))
                self.left.heed(order.slots)
                self._record_ranks(order.slots)
                self._heed_lease(order.slots[0], time.monotonic())
            self._hold_logs()
            self._reap()
            self._keep_relay(time.monotonic())
            if not self.ending:
                self._end_strays_of_ended()
                self.end_stopped(time.monotonic())
                self._start_standby()
            self._tell_what_is_left(order)
            self._heed_silence(time.monotonic())
            if time.monotonic() >= self.deadline or (not self.plan.node and set(self.pids.values()) <= self.standby):
                self._kill()

    def end_strays(self) -> None:
        """Kill what is left of the workers' descendants; the kernel made us their parent. Returns when all are gone."""
        self._kill()
        process.end_descendants()

    def end_stopped(self, now: float) -> None:
        """End members that a signal stopped for longer than the grace: the others wait for them in a collective, and
        rank 0's heartbeat may go on all the while."""
        for pid, number in self.pids.items():
            if number in self.standby or number in self.draining or not self.processes[number].stopped():
                self.stopped.pop(number, None)
                continue
            seconds = now - self.stopped.setdefault(number, now)
            if seconds >= self.plan.grace_seconds:
                why = f"rank {number} (pid {pid}) was stopped by a signal for {seconds:.0f} s, and is killed"
                log.warning(why)
                self.outcome = self.outcome._replace(failure=why)
                process.send(pid, signal.SIGKILL)

    def _ask_to_stop(self) -> None:
        request = self.run_dir.read(GroupStop)
        grace = request.grace_seconds if request else self.plan.grace_seconds
        log.info(f"asked to stop; grace {grace:g} s")
        self.outcome = self.outcome._replace(stop_grace=grace)
        self._end_by(time.monotonic() + grace)
        for pid in self.pids:
            process.send(pid, signal.SIGTERM)  # the worker alone: its helpers must live until it has committed

    def _update_members(self, slots: set[SlotId]) -> None:
        """Who belongs to the group, now that it has these slots."""
        for number in self.pids.values():
            if self.slots[number] in slots:
                self.standby.discard(number)
            elif number not in self.standby:
                self.draining.setdefault(number, time.monotonic() + PEER_SECONDS)
        for number, code in list(self.dead_standby.items()):
            if self.slots[number] in slots:  # it died just as the group came to count on it
                del self.dead_standby[number]
                self._record_death(number, code)
                self._end_by(time.monotonic() + PEER_SECONDS)
        for pid, number in self.pids.items():
            if self.draining.get(number, inf) <= time.monotonic():
                if number not in self.serving and self.run_dir.read(ServingState, number) is not None:
                    self.serving.add(number)
                    self.draining[number] += SERVING_SECONDS
                    log.info(f"rank {number} (pid {pid}) has left the group, which still takes from it what it holds")
                    continue
                log.warning(f"killing rank {number} (pid {pid}), which has left the group but does not end")
                process.send(pid, signal.SIGKILL)
                self.draining[number] = inf

    def _reap(self) -> None:
        while self.pids:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                return
            if pid == self.relay:
                log.warning("the control relay has died")
                self.relay = None
            if self.telling is not None and (told := self.telling.ended(pid, status, time.monotonic())):
                self.left.told(told)
            if pid not in self.pids:
                continue  # a stray that ended by itself
            number, code = self.pids.pop(pid), os.waitstatus_to_exitcode(status)
            self.ended.numbers.add(number)
            log.info(f"rank {number} (pid {pid}) ended with {code}")
            if number in self.standby:
                self.standby.discard(number)
                self.dead_standby[number] = code
            elif self.draining.pop(number, None) is None:
                self._record_death(number, code)

    def _record_death(self, number: int, code: int) -> None:
        """A member of the group has ended: unless it ended well, the others do so soon."""
        self.outcome.codes[number] = code
        self.outcome.order.append(number)
        if code not in (ExitCode.DONE, ExitCode.STOPPED):
            self._end_by(time.monotonic() + PEER_SECONDS)

    def _end_by(self, deadline: float) -> None:
        self.ending = True
        self.deadline = min(self.deadline, deadline)

    def _end_strays_of_ended(self) -> None:
        """End what workers that have left had started, and say that they are gone once nothing of them is left."""
        own = {self.relay, *(self.telling.children if self.telling is not None else ())}
        if self.ended.numbers and self.ended.end_strays(self.processes, self.pids.values(), own):
            self._record()

    def _tell_what_is_left(self, order: OrderInForce | None) -> None:
        """Have the ledger know which slots the group has left with nothing of it."""
        if self.telling is None or order is None:
            return
        occupied = {self.slots[number] for number in (*self.pids.values(), *self.ended.numbers)}
        self.telling.tell(order.epoch, self.left.cleared(occupied), time.monotonic())

    def _start_standby(self) -> None:
        request = self.run_dir.read(StandbyRequest)
        if request is None or request.request == self.standby_request:
            return
        self.standby_request = request.request
        taken = {self.slots[number] for number in self.pids.values()}
        for slot in request.slots:
            if slot not in taken and self._is_here(slot):
                for number in [number for number in self.dead_standby if self.slots[number] == slot]:
                    del self.dead_standby[number]
                try:
                    self.standby.add(self._start(self._next_number(), slot, None))
                except (OSError, UserError) as error:  # the group trains on without it
                    log.warning(f"no standby worker can be started on {slot}: {error}")
        self._record()

    def _keep_relay(self, now: float) -> None:
        """Have workers in network namespaces a way to the control API."""
        apart = any(network.namespace for network in self.plan.networks.values())
        if apart and self.relay is None and now >= self.next_relay:
            url = self.run_dir.require(WorkerSettings).control_url
            self.relay = control_relay.start(self.run_dir.path / CONTROL_SOCKET, url, self.plan.user)
            self.next_relay = now + TICK_SECONDS

    def _is_here(self, slot: SlotId) -> bool:
        return self.plan.node in ("", slot.node)

    def _next_number(self) -> int:
        """One that no worker had here, nor under an agent that this node had of the group before."""
        logs = (int(path.stem.removeprefix("rank")) for path in (self.run_dir.path / "logs").glob("rank*.log"))
        return 1 + max((*self.slots, *logs), default=-1)

    def _heed_silence(self, now: float) -> None:
        """A coordinator that cannot be heard may have given the group up, and its slots away."""
        if not self.plan.silence_seconds or self.ending:
            return
        heard = self.run_dir.read(CoordinatorHeard)
        self.heard = max(self.heard, heard.at if heard else 0.0)
        if now - self.heard > self.plan.silence_seconds:
            why = f"the group's coordinator was not heard for {now - self.heard:.0f} s, and the workers are ended"
            log.warning(why)
            self.outcome = self.outcome._replace(failure=why)
            self._end_by(-inf)

    def _heed_lease(self, slot: SlotId, now: float) -> None:
        """A rank 0 that cannot renew the lease ends itself; here, where it cannot even do that, since native code keeps
        its threads from running. On a node that nobody can reach there is nobody else to do it."""
        first = next((number for number in self.pids.values() if self.slots[number] == slot), None)
        if first != self.first[0]:
            self.first = first, now
        held = self.run_dir.read(LeaseHeld) if first is not None and not self.ending else None
        if first is None or held is None or held.process != self.processes[first]:
            return
        over = now - max(held.until, self.first[1])
        if over > LEASE_MARGIN:
            why = f"the lease ended {over:.0f} s ago, and rank 0 (pid {held.pid}) has not ended with it"
            log.warning(why)
            self.outcome = self.outcome._replace(failure=why)
            self._end_by(-inf)

    def _start(self, number: int, slot: SlotId, world_size: int | None) -> int:
        pid = _spawn(worker_command(self.plan, self.run_dir.path, number, slot, world_size))
        self.slots[number] = slot
        self.pids[pid] = number
        self.processes[number] = ProcessId.of(pid) or ProcessId(pid, 0)
        self.left.began((slot,))
        return number

    def _record(self) -> None:
        """Write down which workers live, or may have left something."""
        numbers = sorted({*self.pids.values(), *self.ended.numbers})
        workers = (WorkerProcess(*self.processes[number], str(self.slots[number])) for number in numbers)
        self.run_dir.write(WorkerProcesses(tuple(workers)))

    def _record_ranks(self, slots: Sequence[SlotId]) -> None:
        """Write down which worker has which rank, where that has changed."""
        numbers = {self.slots[number]: number for number in self.pids.values()}
        own = [slot for slot in slots if self._is_here(slot)]
        by_rank = tuple(numbers[slot] for slot in own if slot in numbers)
        if len(by_rank) == len(own) and by_rank != self.by_rank:
            self.by_rank = by_rank
            self.run_dir.write(WorkersByRank(by_rank))

    def _hold_logs(self) -> None:
        """What is printed without end fills no disk."""
        for number in self.pids.values() if self.log_bytes else ():
            path = self.run_dir.log(number)
            try:
                if parts.hold_to(path, self.log_bytes):
                    log.info(f"{path.name} had grown to {self.log_bytes} bytes: its oldest half is let go")
            except FileNotFoundError:
                continue  # not opened yet
            except OSError as error:
                self.log_bytes = 0
                log.warning(f"logs are not held to their size, they grow with what workers print: {error}")
                return

    def _kill(self) -> None:
        for pid, number in self.pids.items():
            log.info(f"killing rank {number} (pid {pid})")
            if number not in self.standby and number not in self.draining:
                self.outcome.killed.add(number)
            process.send(pid, signal.SIGKILL)
        self.ending, self.deadline = True, inf


def _spawn(command: WorkerCommand) -> int:
    """Fork and exec one worker, in a session of its own, that dies with this process.

    An agent that came out of a fork server holds what a worker runs already, and executes nothing."""
    agent = os.getpid()
    if pid := os.fork():
        return pid
    try:
        os.setsid()
        process.die_with_parent()
        if os.getppid() != agent:  # it died between fork and prctl: no signal will come any more
            os._exit(1)
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
        if command.cpus:
            os.sched_setaffinity(0, command.cpus)
        output = os.open(command.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        os.dup2(output, 1)
        os.dup2(output, 2)
        process.give_way(command.nice)
        if command.namespace:
            namespaces.enter(command.namespace)
        if command.user:
            drop(*command.user)  # the log is open already: its folder stays closed
        os.chdir(command.cwd)
        if fork_server.can_run(command.argv):
            os.closerange(3, os.sysconf("SC_OPEN_MAX"))  # as executing would have
            fork_server.run(command.argv, command.env, marks=(RUN_DIR, WORKER))
        os.execvpe(command.argv[0], command.argv, {**os.environ, **command.env})
    except (OSError, ValueError):
        traceback.print_exc()
    finally:
        os._exit(127)


def supervise(run_dir: RunDir, token: mmap | None = None) -> GroupOutcome:
    """Run the group of spawn.json to its end. Whatever happens here, no process is left when this returns.

    `token`: the agent's, with which it tells the ledger; None where the group's coordinator does (`launch.on_ray`).
    """
    signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)  # taken by sigtimedwait: none is lost, none interrupts
    process.adopt_orphans()
    try:
        group, order = Group(run_dir, run_dir.require(SpawnPlan), token), run_dir.require(OrderInForce)
        if (request := run_dir.read(GroupStop)) is not None:  # who writes it later finds this process to signal
            return GroupOutcome({}, [], set(), request.grace_seconds, never_began=True)
    except InfrastructureError as error:
        return GroupOutcome({}, [], set(), None, f"the group cannot be started: {error}")
    try:
        group.spawn(order.slots)
        group.watch()
    except (OSError, InfrastructureError, UserError) as error:  # no more processes, disk full, a broken file, a slot
        log.exception("the agent failed")  # without a device: the host's fault, and the report must still go out
        group.outcome = group.outcome._replace(failure=f"the agent failed: {error}")
    finally:
        group.end_strays()
    return group.outcome
