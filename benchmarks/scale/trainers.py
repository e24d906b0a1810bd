"""Simulated trainers: each speaks the real API as the rank 0 of a job and its agent do, and computes nothing.

Many in one process, at their own times, over connections of their own. A job's speed is a formula; its steps are as
many as the time since its last turn holds. Heartbeats come when the last answer said, reports with them; a segment ends
when its time is up or a boundary is asked for, and goes on in the processes that it has where the answer passes the
lease on. Where it does not, the agent reports that they are gone, and the next segment's slots are asked for, as its
run in Airflow would.
"""

from __future__ import annotations

import heapq
import multiprocessing
import os
import socket
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from random import Random
from typing import TypeVar

from benchmarks.common.control_server import SECRET
from elastic_core.domain import JobState, Layout, Observation, SegmentState
from elastic_core.errors import ElasticError, Fenced, NotFound
from elastic_core.protocol.http_client import HttpControl, HttpTrainer
from elastic_core.protocol.process_groups import ExitKind, ExitReport, LaunchOrder
from elastic_core.protocol.trainer import Commit, Directive, Heartbeat, HeartbeatAnswer
from elastic_core.state.stores.paths import CheckpointPath

THREADS = 24
WAIT_SECONDS = 5.0  # between two looks of who waits for slots
STEP_SECONDS = 0.2  # of a batch of 256 on one slot, without exchange
SYNC_SECONDS = 0.01  # of a step, for each doubling of slots
Answer = TypeVar("Answer")
# What was asked, as `Calls` has it; errors; how late turns came.
Told = tuple[dict[str, list[tuple[float, float]]], dict[str, int], list[float]]


@dataclass
class Calls:
    """What was asked: (when it was sent, seconds to the answer) by the name of the call; errors by their words."""

    seconds: defaultdict[str, list[tuple[float, float]]] = field(default_factory=lambda: defaultdict(list))
    errors: defaultdict[str, int] = field(default_factory=lambda: defaultdict(int))
    lock: threading.Lock = field(default_factory=threading.Lock)

    def timed(self, name: str, call: Callable[[], Answer]) -> Answer:
        sent = time.time()
        started = time.perf_counter()
        try:
            return call()
        finally:
            with self.lock:
                self.seconds[name].append((sent, time.perf_counter() - started))


class Trainer:
    """One job."""

    def __init__(self, base: str, service: HttpControl, job_id: str, calls: Calls, random: Random) -> None:
        self._service, self._job_id, self._calls, self._random = service, job_id, calls, random
        self._trainer = HttpTrainer(base, "")
        self._order: LaunchOrder | None = None
        self._agent = HttpTrainer(base, "")
        self._step = self._samples = 0
        self._noise_scale = 64.0 * 2 ** random.randint(0, 6)
        self._segment_began = self._looked = 0.0

    def turn(self) -> float:
        """What is due; seconds until the next turn."""
        if self._order is None:
            return self._begin()
        order = self._order
        self._train(order)
        answer = self._calls.timed("heartbeat", self._beat)
        if answer.token is not None:
            self._trainer.token = answer.token
        if answer.directive in (Directive.STOP, Directive.FENCED):
            self._leave(ExitKind.BOUNDARY)
            return WAIT_SECONDS
        if answer.directive is Directive.BOUNDARY or time.monotonic() - self._segment_began >= order.segment_seconds:
            self._end_segment(order, answer)
        else:
            self._calls.timed("observe", lambda: self._trainer.observe([self._observation(order)]))
        return answer.heartbeat_seconds or order.heartbeat_seconds

    def _begin(self) -> float:
        try:
            segment = self._service.job(self._job_id).segment_id
        except NotFound:
            return WAIT_SECONDS  # it comes later
        if self._service.acquire(segment).state != SegmentState.GRANTED:
            return WAIT_SECONDS
        self._order = order = self._service.launch_order(segment)
        self._agent.token, self._trainer.token = order.agent_token, order.token
        now = time.monotonic()
        # So that segments do not all end at once: those of a real pool began at times of their own.
        self._segment_began, self._looked = now - self._random.random() * order.segment_seconds, now
        return self._calls.timed("heartbeat", self._beat).heartbeat_seconds or order.heartbeat_seconds

    def _train(self, order: LaunchOrder) -> None:
        now = time.monotonic()
        steps = max(1, int((now - self._looked) / step_seconds(order)))
        self._step += steps
        self._samples += steps * order.allocation.global_batch
        self._looked = now

    def _beat(self) -> HeartbeatAnswer:
        return self._trainer.heartbeat(
            Heartbeat(step=self._step, samples=self._samples, at=time.time(), host=socket.gethostname(),
                      pids=(os.getpid(),))
        )  # fmt: skip

    def _end_segment(self, order: LaunchOrder, answer: HeartbeatAnswer) -> None:
        """Workers for a growth are there at once."""
        commit = Commit(
            step=self._step, samples=self._samples,
            uri=CheckpointPath(self._job_id, order.lineage, self._step, order.epoch, "0").uri,
            manifest_sha256="0" * 64, size_bytes=1 << 20, layout=Layout(data=order.allocation.num_slots),
            metrics={"loss": self._loss()}, final=True, timings={"save": 0.1},
            ready=tuple(slot for slot in answer.slots if slot not in order.allocation.slots),
        )  # fmt: skip
        try:
            told = self._calls.timed("commit", lambda: self._trainer.commit(commit))
        except Fenced:
            if self._service.job(self._job_id).state is not JobState.CANCELLED:
                raise
            self._leave(ExitKind.BOUNDARY)  # by the benchmark, between the heartbeat and the commit: an answer
            return
        if told.order is None:
            self._leave(ExitKind.BOUNDARY)
            return
        left = set(order.allocation.slots) - set(told.order.allocation.slots)
        self._order, self._trainer.token = told.order, told.order.token
        self._segment_began = time.monotonic()
        if left:
            epoch = told.order.epoch
            self._calls.timed("release", lambda: self._agent.release_slots(tuple(left), epoch))

    def _leave(self, kind: ExitKind) -> None:
        self._calls.timed("exited", lambda: self._agent.exited(ExitReport(kind=kind)))
        self._order = None

    def _loss(self) -> float:
        return 0.5 + 2.0 / (1.0 + self._samples / 50_000)

    def _observation(self, order: LaunchOrder) -> Observation:
        allocation = order.allocation
        batch, slots, seconds = allocation.global_batch, allocation.num_slots, step_seconds(order)
        return Observation(
            step=self._step, samples=self._samples, at=time.time(), epoch=self._samples / order.facts.dataset_samples,
            num_slots=slots, num_nodes=allocation.num_nodes, type=allocation.slots[0].type, global_batch=batch,
            local_batch=-(-batch // slots), accumulation=1, step_seconds=seconds * self._random.uniform(0.95, 1.05),
            sync_seconds=SYNC_SECONDS, samples_per_second=batch / seconds, loss=self._loss(), learning_rate=0.1,
            grad_sqr=1.0, grad_var=self._noise_scale * self._random.uniform(0.5, 1.5),
        )  # fmt: skip


def step_seconds(order: LaunchOrder) -> float:
    slots = order.allocation.num_slots
    return STEP_SECONDS * order.allocation.global_batch / 256 / slots + SYNC_SECONDS * (slots.bit_length() - 1) + 0.005


def run(base: str, job_ids: Sequence[str], told: Connection) -> None:
    """Of a process of its own: until something comes by `told`, which is answered with the `Calls`' contents."""
    service, calls, random = HttpControl(base, SECRET, patience_seconds=60), Calls(), Random(0)
    trainers = [Trainer(base, service, job_id, calls, Random(f"{job_id}")) for job_id in job_ids]
    agenda = _Agenda(trainers, calls, random)
    threads = [threading.Thread(target=agenda.work, daemon=True) for _ in range(THREADS)]
    for thread in threads:
        thread.start()
    told.recv()
    agenda.stop()
    for thread in threads:
        thread.join(60)
    told.send((dict(calls.seconds), dict(calls.errors), agenda.late))


@contextmanager
def training(base: str, jobs: int) -> Iterator[Callable[[], Told]]:
    """Of jobs "job-0", "job-1", ... in a process of its own; what comes of it ends it, and tells how it went."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=run, args=(base, [f"job-{number}" for number in range(jobs)], theirs))
    process.start()

    def asked() -> Told:
        ours.send("end")
        told: Told = ours.recv()
        return told

    try:
        yield asked
    finally:
        process.terminate()
        process.join()


class _Agenda:
    """Whose turn it is."""

    def __init__(self, trainers: Sequence[Trainer], calls: Calls, random: Random) -> None:
        now = time.monotonic()
        self._trainers, self._calls = trainers, calls
        self._heap = [(now + random.uniform(0, WAIT_SECONDS), number) for number in range(len(trainers))]
        heapq.heapify(self._heap)
        self._changed = threading.Condition()
        self._stopped = False
        self.late: list[float] = []  # seconds that turns came late: then the machine, or this process, is too busy

    def stop(self) -> None:
        with self._changed:
            self._stopped = True
            self._changed.notify_all()

    def work(self) -> None:
        while (number := self._next()) is not None:
            try:
                seconds = self._trainers[number].turn()
            except ElasticError as error:
                with self._calls.lock:
                    self._calls.errors[f"{type(error).__name__}: {error}"[:200]] += 1
                seconds = WAIT_SECONDS
            with self._changed:
                heapq.heappush(self._heap, (time.monotonic() + seconds, number))
                self._changed.notify()

    def _next(self) -> int | None:
        with self._changed:
            while not self._stopped:
                now = time.monotonic()
                if self._heap and self._heap[0][0] <= now:
                    due, number = heapq.heappop(self._heap)
                    self.late.append(now - due)
                    return number
                self._changed.wait(self._heap[0][0] - now if self._heap else 1.0)
        return None
