"""The driver of one process group over the nodes of a Ray cluster: `python -m ... SUBMISSION_ID`, as a job of Ray.

It runs on rank 0's node. It has each node's actor start an agent with that node's workers, carries what the nodes tell
each other (`mailboxes`), takes nodes in and lets them go as the group is resized, and ends the rest of the group where
a part fails; slots that the group leaves while it goes on it gives back, once their node's agent says that nothing is
left there. An actor that cannot do its turns is no end of its part, whose processes may live: it is told to end them,
and while one lives the part has not ended. A coordinator's turns are what agents hear it by: without them for a lease's
life they end their workers. So it waits for no answer: neither of Ray's head, which may be away (`ray_cluster.Head`),
nor of an actor, and a part whose actor does not answer for a lease's life has ended. What became of the group it says
in its output (`journal`) and to the ledger, once nothing of it is left.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from elastic_core import logs
from elastic_core.domain import from_json
from elastic_core.errors import ElasticError, InfrastructureError
from elastic_core.host.messages import ORDER, OrderAllocation, OrderInForce, SlotId, StandbyRequest, decode
from elastic_core.launch.delivery import deliver_to
from elastic_core.launch.on_ray import journal, node_actor, ray_cluster, sealed_order
from elastic_core.launch.on_ray.copy_holders import CopyHolders
from elastic_core.launch.on_ray.mailboxes import PostOffice
from elastic_core.launch.on_ray.merged_exit import merged
from elastic_core.launch.on_ray.ray_cluster import Head, NodeSilent, RayNode
from elastic_core.launch.on_ray.sealed_order import ORDER_VARIABLE, GroupLaunch
from elastic_core.launch.on_ray.slot_return import SlotReturn
from elastic_core.launch.workers.worker_group import PEER_SECONDS
from elastic_core.protocol.process_groups import ExitKind, ExitReport
from elastic_core.settings import Settings

TICK_SECONDS = 0.1  # between two turns with a node, of a group that has several
ALONE_SECONDS = 0.4  # the same of a group on one node, where there is nothing to carry
RETRY_SECONDS = 1.0  # before a node is asked again that was silent, did not start or failed
FAILING_SECONDS = 30.0  # that an actor may fail to do its turns, before its part is ended
STARTING_SECONDS = 600.0  # for a node to start its part: it may have to fetch a job's code first
SILENCE_MARGIN = 15.0  # past a lease's life, for an agent to end its workers
INSIST_SECONDS = 5.0  # past the grace, and again after each of these
DELIVERY_SECONDS = 30.0  # to tell the ledger; reconciliation tells it later otherwise
_ENDED_WELL = (ExitKind.BOUNDARY, ExitKind.FINISHED)


@dataclass(slots=True)
class Part:
    """One node's part of the group."""

    node: RayNode
    again: bool  # it is begun anew on a node where one has ended
    request: int | None = None  # for standby workers, that it was taken in for
    actor: Any = None  # once it is known
    question: Any = None  # that is open
    asked: str = "start"
    asked_at: float = 0.0  # monotonic seconds
    stop: Any = None  # that it was told to: the open question, True once that was taken
    letters: dict[str, str | None] | None = None  # that went with it
    running: bool = False  # its agent was seen
    report: ExitReport | None = None  # once it has ended
    over_at: float = 0.0  # monotonic seconds: then, at the latest, where nobody said that nothing of it lives
    next_turn: float = 0.0  # monotonic seconds
    failing_since: float | None = None  # monotonic seconds: since when its actor does no turn
    failure: str = ""  # why it is being ended
    logs: tuple[int, ...] = ()  # numbers of its workers, in the order of their ranks


class Coordinator:
    """Its clock is monotonic seconds."""

    def __init__(self, launch: GroupLaunch, namespace: str, asked_to_stop: threading.Event) -> None:
        self._launch, self._namespace = launch, namespace
        self._epoch = launch.order.origin_epoch
        self._settings = Settings.model_validate(launch.settings)
        self._parts: dict[str, Part] = {}
        self._post = PostOffice()
        self._addresses: dict[str, Any] = {}  # of the nodes' cache servers
        self._head = Head(namespace, self._settings.node_home(), {})
        self._copies = CopyHolders(launch, self._head)
        self._order = OrderInForce(launch.order.segment_id, launch.order.epoch, _allocation(launch))
        self._slot_return = SlotReturn(self._settings.control_url, launch.order.agent_token)
        self._slot_return.left.heed(self._order.slots)
        self._stop_at: float | None = None  # when whoever is left is killed
        self._stopping_since = 0.0  # monotonic seconds
        self._asked_to_stop = asked_to_stop
        self._logs_said: list[str] = []
        self._next_growth = 0.0
        self._first_end: ExitReport | None = None

    def run(self) -> ExitReport:
        """Until nothing of the group is left. Raises `InfrastructureError` where a node of it is not there."""
        if self._asked_to_stop.is_set():
            return ExitReport(kind=ExitKind.STOPPED, error="the group was stopped before any of it had started")
        living = ray_cluster.living_nodes()
        missing = set(self._nodes_of_group()) - set(living)
        if missing:  # before anything is started
            there, gone = ray_cluster.names(living), ray_cluster.names(missing)
            raise InfrastructureError(f"nodes of the group are not in the Ray cluster: {gone}; there are: {there}")
        self._head = Head(self._namespace, self._settings.node_home(), living)
        self._copies = CopyHolders(self._launch, self._head)
        for name in self._nodes_of_group():
            self._begin(living[name], again=False)
        while True:
            open_parts = [part for part in self._parts.values() if part.report is None]
            if not open_parts:
                break
            self._turn(open_parts)
            if self._asked_to_stop.is_set() and self._stop_at is None:
                self._stop(self._settings.grace_seconds)
            self._insist()
            self._grow()
            if self._stop_at is None:
                running = {part.node.spec.name: part.actor if part.running else None for part in open_parts}
                self._copies.turn(running, self._addresses)
                self._slot_return.turn(self._order.epoch, self._is_clear)
            self._heed_ends()
            self._say_logs()
        members = [self._parts[name] for name in self._nodes_of_group() if name in self._parts]
        ray_cluster.forget([part.actor for part in self._parts.values() if part.actor is not None], self._epoch)
        return merged([part.report for part in members if part.report is not None], self._first_end)

    def _is_clear(self, slot: SlotId) -> bool:
        """Nothing of the group is left on it, by the word of its node's agent."""
        part = self._parts.get(slot.node)
        if part is None or part.report is not None:
            return part is None or time.monotonic() > part.over_at
        return self._post.is_clear(slot.node, str(slot))

    def _nodes_of_group(self) -> list[str]:
        """Of the order in force, by their first rank."""
        return list(dict.fromkeys(slot.node for slot in self._order.slots))

    def _begin(self, node: RayNode, *, again: bool, request: int | None = None) -> None:
        """Have a node start its part, in the next turn."""
        self._parts[node.spec.name] = Part(node, again, request)
        self._post.leave(node.spec.name)

    def _ask_start(self, part: Part) -> None:
        part.letters = self._post.due(part.node.spec.name)
        launch = self._launch.to_plain()
        if ORDER in self._post.shared:
            launch["order"] = {**launch["order"], **json.loads(self._post.shared[ORDER])}
        launch["order"]["agent_token"] = ""
        part.asked, again, part.again = "start", part.again, False
        part.question = part.actor.start.remote(
            part.node.node_id, launch, part.node.spec.model_dump(mode="json"), part.letters, self._copies.members(),
            journal.logs_folder(self._namespace, self._epoch), again,
        )  # fmt: skip

    def _turn(self, parts: Sequence[Part]) -> None:
        now = time.monotonic()
        for part in parts:
            if part.question is None and part.next_turn <= now:
                self._ask(part)
        open_questions = {part.question: part for part in parts if part.question is not None}
        if not open_questions:
            time.sleep(TICK_SECONDS / 2)
            return
        for question in ray_cluster.ready(list(open_questions), TICK_SECONDS):
            part = open_questions[question]
            part.question, part.next_turn = None, time.monotonic() + self._pause()
            try:
                self._hear(part, ray_cluster.answer(question))
            except NodeSilent as silent:
                self._heed_silence(part, str(silent))
            except RuntimeError as error:
                self._heed_failure(part, f"the actor of node {part.node.spec.name} failed: {error}")
        for part in open_questions.values():
            self._heed_hanging(part)

    def _pause(self) -> float:
        return ALONE_SECONDS if len(self._parts) == 1 else TICK_SECONDS

    def _ask(self, part: Part) -> None:
        name = part.node.spec.name
        if self._stop_at is not None and not part.asked_at:
            why = f"it was stopped before it had begun on node {name}"
            self._record_end(part, ExitReport(kind=ExitKind.STOPPED, error=why))
            return
        part.actor = self._head.actor_of(name)
        if part.actor is None:
            return
        part.asked_at = time.monotonic()
        if part.failure:
            part.asked, part.letters = "end", None
            part.question = part.actor.end.remote(self._epoch, PEER_SECONDS, PEER_SECONDS + INSIST_SECONDS)
            return
        if part.asked == "start" and not part.running:  # it was not, or the answer was lost
            self._ask_start(part)
            return
        part.asked, part.letters = "exchange", self._post.due(name)
        known = {**self._copies.addresses, **self._addresses}
        addresses = {node: address for node, address in known.items() if node != name}
        part.question = part.actor.exchange.remote(part.node.node_id, self._epoch, part.letters, addresses)

    def _hear(self, part: Part, answer: Mapping[str, Any]) -> None:
        name = part.node.spec.name
        self._post.delivered(name, part.letters or {})
        if part.asked == "end":
            self._hear_end(part, answer)
            return
        if "error" in answer and part.asked == "start":
            self._heed_failure(part, answer["error"])
            return
        if "error" in answer:
            self._end(part, answer["error"])
            return
        part.failing_since = None
        if part.asked == "start":
            part.running, part.stop = True, None  # it may have come up while the others were being ended
            return
        if not answer["known"]:
            self._end(part, f"node {name} knows nothing of the group any more: its folder was removed")
            return
        self._post.collect(name, answer["letters"])
        if answer["address"] is not None:
            self._addresses[name] = answer["address"]
        part.logs = tuple(answer["ranks"])
        if ORDER in self._post.shared:
            self._order = decode(OrderInForce, json.loads(self._post.shared[ORDER]))
            self._slot_return.left.heed(self._order.slots)
        if answer["exit"] is not None:
            self._record_end(part, from_json(ExitReport, answer["exit"]))

    def _heed_silence(self, part: Part, why: str) -> None:
        """An actor that was killed comes again, or another in its place; a node that Ray has given up does not."""
        name = part.node.spec.name
        living = self._head.living().get(name)
        if living is None or living.node_id != part.node.node_id:
            self._end(part, f"node {name} is gone from the Ray cluster: {why.strip().splitlines()[0]}")
            return
        self._head.actor_of(name, anew=True)
        part.next_turn = time.monotonic() + RETRY_SECONDS

    def _heed_hanging(self, part: Part) -> None:
        """An actor may hang on a node that lives. Nobody notes turns there, so that the agent ends its workers."""
        now, name = time.monotonic(), part.node.spec.name
        if part.question is None:
            return
        lease = self._launch.order.lease_seconds + SILENCE_MARGIN
        starts = part.asked == "start" and self._stop_at is None
        told_at = part.asked_at if self._stop_at is None else max(part.asked_at, self._stopping_since)
        if now - told_at > (STARTING_SECONDS if starts else lease):
            self._tell_to_stop(part, 0.0)  # its slots may be another group's soon: what it is starting must not begin
            self._end(part, f"the actor of node {name} has not answered for {now - part.asked_at:.0f} s")

    def _heed_failure(self, part: Part, why: str) -> None:
        """What an actor could not do it may do later (a disk is full). Meanwhile the part's processes may live."""
        now = time.monotonic()
        part.next_turn = now + RETRY_SECONDS
        part.failing_since = now if part.failing_since is None else part.failing_since
        if not part.failure and (part.asked == "start" or now - part.failing_since > FAILING_SECONDS):
            part.failure, part.next_turn = why, now

    def _hear_end(self, part: Part, answer: Mapping[str, Any]) -> None:
        """The part has ended once nothing of it lives; until then its node is told again."""
        if answer["alive"]:
            return
        found = from_json(ExitReport, answer["exit"]) if answer["exit"] is not None else None
        if found is None or found.kind is ExitKind.STOPPED:  # by us
            codes = found.exit_codes if found is not None else ()
            found = ExitReport(kind=ExitKind.INFRASTRUCTURE, error=part.failure, exit_codes=codes)
        self._record_end(part, found)

    def _end(self, part: Part, why: str) -> None:
        """By nobody's word: its agent ends its workers once it has not heard us for a lease's life."""
        part.over_at = time.monotonic() + self._launch.order.lease_seconds + SILENCE_MARGIN
        self._record_end(part, ExitReport(kind=ExitKind.INFRASTRUCTURE, error=why))

    def _record_end(self, part: Part, report: ExitReport) -> None:
        part.report = report
        if self._first_end is None and report.kind not in _ENDED_WELL:
            self._first_end = report
        self._post.leave(part.node.spec.name)

    def _grow(self) -> None:
        """Take in nodes for which rank 0 wants standby workers."""
        if self._stop_at is not None or StandbyRequest.FILE not in self._post.shared:
            return
        wanted = decode(StandbyRequest, json.loads(self._post.shared[StandbyRequest.FILE]))
        self._slot_return.left.began(wanted.slots)
        names = [slot.node for slot in wanted.slots if self._may_begin(slot.node, wanted.request)]
        if not names or time.monotonic() < self._next_growth:
            return
        self._next_growth = time.monotonic() + RETRY_SECONDS
        living = self._head.living()
        for name in dict.fromkeys(names):
            if name in living:
                self._begin(living[name], again=name in self._parts, request=wanted.request)

    def _may_begin(self, name: str, request: int) -> bool:
        """It has no part, or had one that has ended and left the group. One that ended by itself, as its workers did or
        could not be started (a slot without a device), would end again: once a request."""
        part = self._parts.get(name)
        if part is None:
            return True
        if part.report is None or name in self._nodes_of_group():
            return False
        return part.report.kind not in _ENDED_WELL or part.request != request

    def _heed_ends(self) -> None:
        """Where a part of the group has failed, or all of it is over, the rest ends."""
        if self._stop_at is not None:
            return
        members = [self._parts[name] for name in self._nodes_of_group() if name in self._parts]
        failed = any(_has_failed(part) for part in members)
        over = all(part.report is not None for part in members)
        if failed or over:
            self._stop(PEER_SECONDS if failed and not over else 0.0)

    def _stop(self, grace_seconds: float) -> None:
        now = time.monotonic()
        self._stopping_since = now if self._stop_at is None else self._stopping_since
        self._stop_at = now + grace_seconds
        for part in self._parts.values():
            part.stop = None

    def _insist(self) -> None:
        """Tell parts to stop, those again whose actor was not there, with what is left of the grace; and all of them
        once that is over."""
        now = time.monotonic()
        if self._stop_at is None:
            return
        if now > self._stop_at + INSIST_SECONDS:
            self._stop(0.0)
        for part in self._parts.values():
            if part.report is None and part.actor is not None:
                self._tell_to_stop(part, max(0.0, self._stop_at - now))

    def _tell_to_stop(self, part: Part, grace_seconds: float) -> None:
        if part.stop is None:
            part.stop = part.actor.stop.remote(self._epoch, grace_seconds)
        if part.stop is True or not ray_cluster.ready([part.stop], 0.0):
            return
        try:
            ray_cluster.answer(part.stop)
            part.stop = True
        except (NodeSilent, RuntimeError):  # told again in the next turn: the actor may just be starting again
            part.stop = None

    def _say_logs(self) -> None:
        """Where the log of each rank is."""
        folder = journal.logs_folder(self._namespace, self._epoch)
        urls, used = [], dict.fromkeys(self._parts, 0)
        for slot in self._order.slots:
            part = self._parts.get(slot.node)
            if part is None or used[slot.node] >= len(part.logs):
                return
            urls.append(f"{part.node.logs_url}/{folder}/rank{part.logs[used[slot.node]]}.log")
            used[slot.node] += 1
        if urls != self._logs_said:
            self._logs_said = urls
            journal.say("logs", urls)


def _has_failed(part: Part) -> bool:
    return part.report.kind not in _ENDED_WELL if part.report is not None else bool(part.failure)


def _allocation(launch: GroupLaunch) -> Any:
    slots = tuple(SlotId(slot.node, slot.index, slot.type) for slot in launch.order.allocation.slots)
    return OrderAllocation(slots)


def main(argv: Sequence[str]) -> int:
    """Called by Ray with what `ray_launcher` has submitted, hence no help."""
    asked_to_stop = threading.Event()
    _heed_signals(asked_to_stop)
    (submission_id,) = argv
    logs.configure("coordinator")
    sealed = os.environ.pop(ORDER_VARIABLE)
    launch = sealed_order.unseal(sealed, sealed_order.token_of_node(), submission_id)
    settings = Settings.model_validate(launch.settings)
    order = launch.order
    with node_actor.coordinating(settings.node_home() / order.allocation.slots[0].node, order.origin_epoch):
        ray_cluster.connect(settings.ray_namespace)
        _heed_signals(asked_to_stop)  # Ray has its own way with them
        try:
            report = Coordinator(launch, settings.ray_namespace, asked_to_stop).run()
        except ElasticError as error:
            report = ExitReport(kind=ExitKind.INFRASTRUCTURE, error=str(error))
        journal.say_exit(report)
        deliver_to(settings.control_url, report, order.agent_token, DELIVERY_SECONDS)
    return 0


def _heed_signals(asked_to_stop: threading.Event) -> None:
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: asked_to_stop.set())


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
