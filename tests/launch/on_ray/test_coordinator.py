"""What a coordinator makes of actors that fail: a part has ended once nothing of it lives. Calls to actors are threads;
actors, agents and workers are real."""

from __future__ import annotations

import errno
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from concurrent.futures import TimeoutError as FutureTimeout
from dataclasses import replace
from pathlib import Path
from secrets import token_hex
from typing import Any

import pytest

from elastic_core.domain import Allocation, Layout, Slot
from elastic_core.errors import InfrastructureError
from elastic_core.host import fork_client
from elastic_core.host.messages import CoordinatorHeard, SlotId, StandbyRequest, WorkerProcesses
from elastic_core.host.process import ProcessId
from elastic_core.host.rundir import RunDir
from elastic_core.launch.on_ray import coordinator, node_actor, ray_cluster
from elastic_core.launch.on_ray.coordinator import Coordinator
from elastic_core.launch.on_ray.node_actor import NodeActor
from elastic_core.launch.on_ray.ray_cluster import NodeSilent, RayNode
from elastic_core.launch.on_ray.sealed_order import GroupLaunch
from elastic_core.protocol.process_groups import ExitKind, ExitReport
from elastic_core.settings import Settings
from elastic_core.spec import NodeSpec
from elastic_core.state.job_code import pinned_code
from tests.e2e.platform import PATIENCE
from tests.launch.builders import SCRIPT, order, wait_for
from tests.launch.on_ray.test_ray_nodes import end_node

NODES = ("n0", "n1")
SECONDS = 40.0 * PATIENCE


class Method:
    def __init__(self, pool: ThreadPoolExecutor, call: Callable[..., Any]) -> None:
        self._pool, self._call = pool, call

    def remote(self, *arguments: Any) -> Future[Any]:
        return self._pool.submit(self._call, *arguments)


class Cluster:
    """Two nodes; `full`: those on whose disk nothing can be written, as far as turns of coordinators go; `away`: those
    whose actor is just starting again; `hung`: those whose actor answers nothing more. `killed`: how many actors of a
    node have died for good, so that their handles reach nobody. `head`: whether Ray's head answers."""

    def __init__(self, home: Path) -> None:
        self.home, self.full, self.failed = home, set[str](), 0
        self.away, self.hung, self.lost = set[str](), set[str](), list[str]()
        self.killed, self.members_told, self.started = Counter[str](), list[str](), Counter[str]()
        self.head = threading.Event()
        self.head.set()
        self.pool = ThreadPoolExecutor(16)
        self._actors = {name: NodeActor(name, str(home)) for name in NODES}
        self.nodes = {name: RayNode(NodeSpec(name=name, type="cpu", slots=1), "id", "http://there") for name in NODES}

    def actor_of(self, _namespace: str, node: str, _home: Path) -> Any:
        actor, born = self._actors[node], self.killed[node]

        class Remote:
            def __getattr__(_, name: str) -> Method:
                return Method(self.pool, lambda *given: self._do(node, born, getattr(actor, name), given))

        return Remote()

    def living_nodes(self) -> dict[str, RayNode]:
        assert self.head.wait(SECONDS)
        return self.nodes

    def _do(self, node: str, born: int, call: Callable[..., Any], given: Sequence[Any]) -> Any:
        if born != self.killed[node]:
            self.lost.append(call.__name__)
            raise NodeSilent("the actor is dead")
        if call.__name__ == "members":
            self.members_told.append(node)
        self.started[node] += call.__name__ == "start"
        if node in self.away:
            self.lost.append(call.__name__)
            raise NodeSilent("the actor is restarting")
        while node in self.hung:
            time.sleep(0.05)
        if node in self.full and call.__name__ == "exchange":
            self.failed += 1
            raise OSError(errno.ENOSPC, "No space left on device")
        return call(*given)

    def worker(self, node: str) -> ProcessId | None:
        folder = RunDir.of(self.home / node, 7)
        known = folder.read(WorkerProcesses) if list(folder.path.glob("ready*")) else None
        return known.workers[0].process if known is not None and known.workers else None


def ready(questions: Sequence[Future[Any]], seconds: float) -> list[Future[Any]]:
    return list(wait(questions, seconds, "FIRST_COMPLETED").done)


def answer(question: Future[Any], seconds: float | None = None) -> Any:
    try:
        return question.result(seconds)
    except FutureTimeout as error:
        raise NodeSilent("no answer in time") from error
    except OSError as error:  # as Ray gives what an actor raised
        raise RuntimeError(str(error)) from error


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cluster]:
    monkeypatch.setattr(node_actor, "own_node_id", lambda: "id")
    monkeypatch.setattr(fork_client, "start", lambda *_: None)  # workers are executed
    monkeypatch.setattr(node_actor, "_session_logs", lambda: tmp_path / "logs")
    cluster = Cluster(tmp_path / "nodes")
    for name, function in {
        "living_nodes": cluster.living_nodes, "actor_of": cluster.actor_of, "ready": ready, "answer": answer,
    }.items():  # fmt: skip
        monkeypatch.setattr(ray_cluster, name, function)
    yield cluster
    cluster.head.set()
    cluster.hung.clear()
    for node in NODES:
        end_node(cluster.home / node)
    cluster.pool.shutdown()


def a_launch(cluster: Cluster, behaviours: str, lease_seconds: float = 90.0) -> GroupLaunch:
    """Of one worker on each node."""
    settings = Settings(ray_node_home=cluster.home, node_memory_mb=0, control_url="http://127.0.0.1:9")
    values: Mapping[str, Any] = settings.model_dump(mode="json", exclude={"home"})
    slots = tuple(Slot(node, 0, "cpu") for node in NODES)
    allocation = Allocation(slots=slots, global_batch=8, layout=Layout(data=2))
    return GroupLaunch(
        order=replace(order(), allocation=allocation, lease_seconds=lease_seconds), settings=dict(values),
        worker_command=(sys.executable, "-S", str(SCRIPT), behaviours), memory_secret="",
    )  # fmt: skip


class Group:
    """A group whose coordinator runs."""

    def __init__(self, cluster: Cluster, behaviours: str, lease_seconds: float = 90.0) -> None:
        self._asked_to_stop = threading.Event()
        self._coordinator = Coordinator(a_launch(cluster, behaviours, lease_seconds), "test", self._asked_to_stop)
        self.report: ExitReport | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        wait_for(lambda: all(cluster.worker(node) for node in NODES), SECONDS)

    def _run(self) -> None:
        self.report = self._coordinator.run()

    def ended(self) -> bool:
        return not self._thread.is_alive()

    def ask_to_stop(self) -> None:
        self._asked_to_stop.set()

    def stop(self) -> ExitReport | None:
        self.ask_to_stop()
        self._thread.join(SECONDS)
        return self.report


def test_an_actor_that_fails_for_a_while_ends_no_group(cluster: Cluster) -> None:
    group = Group(cluster, "boundary")
    workers = [worker for node in NODES if (worker := cluster.worker(node))]
    cluster.full.add("n1")
    wait_for(lambda: cluster.failed >= 2, SECONDS)
    cluster.full.clear()
    heard = time.monotonic()
    there = RunDir.of(cluster.home / "n1", 7)
    wait_for(lambda: (note := there.read(CoordinatorHeard)) and note.at > heard, SECONDS)
    assert not group.ended()
    assert [worker.alive() for worker in workers] == [True, True]
    report = group.stop()
    assert report is not None
    assert report.kind is ExitKind.BOUNDARY


def test_a_group_with_an_actor_that_goes_on_failing_has_ended_once_nothing_of_it_lives(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(coordinator, "FAILING_SECONDS", 1.0)
    group = Group(cluster, "stubborn")  # ended by force alone, after the grace
    worker = cluster.worker("n1")
    assert worker is not None
    cluster.full.add("n1")
    wait_for(lambda: cluster.failed >= 1, SECONDS)
    while worker.alive():
        assert not group.ended()
        time.sleep(0.05)
    wait_for(group.ended, SECONDS)
    assert cluster.worker("n0") is None or not cluster.worker("n0").alive()
    assert group.report is not None
    assert group.report.kind is ExitKind.INFRASTRUCTURE
    assert "the actor of node n1 failed: [Errno 28] No space left on device" in group.report.error


def test_while_the_head_is_away_turns_go_on(cluster: Cluster) -> None:
    group = Group(cluster, "boundary")
    cluster.head.clear()
    cluster.away.add("n1")  # so that the coordinator has a question to the head
    wait_for(lambda: "exchange" in cluster.lost, SECONDS)
    asked_at = time.monotonic()
    there = RunDir.of(cluster.home / "n0", 7)
    wait_for(lambda: (note := there.read(CoordinatorHeard)) and note.at > asked_at + 3.0, SECONDS)
    cluster.away.clear()
    assert not group.ended()
    report = group.stop()
    assert report is not None
    assert report.kind is ExitKind.BOUNDARY


def test_a_head_that_answers_with_an_error_ends_no_group(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    group, failed = Group(cluster, "boundary"), list[str]()

    def fail() -> dict[str, RayNode]:
        failed.append("asked")
        raise InfrastructureError("Ray's head does not say which nodes there are")

    monkeypatch.setattr(ray_cluster, "living_nodes", fail)
    cluster.away.add("n1")
    wait_for(lambda: len(failed) > 1, SECONDS)
    cluster.away.clear()
    report = group.stop()
    assert report is not None
    assert report.kind is ExitKind.BOUNDARY


def test_an_actor_that_hangs_on_a_living_node_pins_no_group(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(coordinator, "SILENCE_MARGIN", 1.0)
    group = Group(cluster, "sleep", lease_seconds=6.0)
    worker = cluster.worker("n1")
    assert worker is not None
    cluster.hung.add("n1")
    wait_for(group.ended, SECONDS)
    assert not worker.alive()  # its agent has heard nobody
    assert group.report is not None
    assert group.report.kind is ExitKind.INFRASTRUCTURE
    assert "the actor of node n1 has not answered for" in group.report.error


def test_an_actor_that_has_died_for_good_is_made_anew(cluster: Cluster) -> None:
    group = Group(cluster, "boundary")
    cluster.killed["n1"] += 1
    wait_for(lambda: "exchange" in cluster.lost, SECONDS)
    died = time.monotonic()
    there = RunDir.of(cluster.home / "n1", 7)
    wait_for(lambda: (note := there.read(CoordinatorHeard)) and note.at > died, SECONDS)
    report = group.stop()
    assert report is not None
    assert report.kind is ExitKind.BOUNDARY


def test_a_stop_that_an_actor_did_not_hear_keeps_its_grace(cluster: Cluster) -> None:
    group = Group(cluster, "boundary")
    cluster.away.add("n1")
    wait_for(lambda: "exchange" in cluster.lost, SECONDS)
    group.ask_to_stop()
    wait_for(lambda: "stop" in cluster.lost, SECONDS)
    cluster.away.clear()
    report = group.stop()
    assert report is not None
    assert (report.kind, report.exit_codes) == (ExitKind.BOUNDARY, (0, 0))


def test_a_node_is_told_who_may_hold_copies_once_its_part_runs(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    fetched, asked_to_stop = threading.Event(), threading.Event()
    monkeypatch.setattr(pinned_code, "fetch", lambda *given: "n1" in given[-1].parts and fetched.wait(SECONDS))
    launch = replace(a_launch(cluster, "boundary"), memory_secret=token_hex(32))
    with ThreadPoolExecutor(1) as pool:
        report = pool.submit(Coordinator(launch, "test", asked_to_stop).run)
        wait_for(lambda: cluster.members_told, SECONDS)
        time.sleep(0.5)
        assert set(cluster.members_told) == {"n0"}
        fetched.set()
        wait_for(lambda: "n1" in cluster.members_told, SECONDS)
        wait_for(lambda: all(cluster.worker(node) for node in NODES), SECONDS)
        asked_to_stop.set()
        assert report.result(SECONDS).kind is ExitKind.BOUNDARY


def test_a_node_on_whose_slot_no_worker_can_be_started_is_asked_once_a_request(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")  # and the node is said to have another device
    asked_to_stop, launch = threading.Event(), a_launch(cluster, "boundary")
    alone = Allocation(slots=launch.order.allocation.slots[:1], global_batch=8, layout=Layout(data=1))
    launch = replace(launch, order=replace(launch.order, allocation=alone))
    with ThreadPoolExecutor(1) as pool:
        report = pool.submit(Coordinator(launch, "test", asked_to_stop).run)
        wait_for(lambda: cluster.worker("n0"), SECONDS)
        for request in (1, 2):
            RunDir.of(cluster.home / "n0", 7).write(StandbyRequest(request, (SlotId("n1", 1, "h200"),)))
            wait_for(lambda asked=request: cluster.started["n1"] == asked, SECONDS)
            wait_for(RunDir.of(cluster.home / "n1", 7).exit_report, SECONDS)
            time.sleep(3 * coordinator.RETRY_SECONDS)
            assert cluster.started["n1"] == request
        assert "no standby worker can be started on n1:1" in RunDir.of(cluster.home / "n1", 7).agent_log.read_text()
        asked_to_stop.set()
        assert report.result(SECONDS).kind is ExitKind.BOUNDARY


def test_a_part_that_is_given_up_while_its_node_starts_it_begins_no_more(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(coordinator, "STARTING_SECONDS", 3.0)
    fetched = threading.Event()
    code = Path("n1", "run", "7", "code")
    monkeypatch.setattr(pinned_code, "fetch", lambda *given: given[-1].match(str(code)) and fetched.wait(SECONDS))
    report = Coordinator(a_launch(cluster, "sleep"), "test", threading.Event()).run()
    assert "the actor of node n1 has not answered for" in report.error
    there = RunDir.of(cluster.home / "n1", 7)
    assert there.exit_report() is None
    fetched.set()
    wait_for(there.exit_report, SECONDS)
    assert there.exit_report() == ExitReport(kind=ExitKind.STOPPED, error="it was stopped before it had begun")
    assert there.read(WorkerProcesses) is None


def test_a_group_that_is_stopped_before_it_begins_never_does(cluster: Cluster) -> None:
    asked_to_stop = threading.Event()
    asked_to_stop.set()
    report = Coordinator(a_launch(cluster, "sleep"), "test", asked_to_stop).run()
    assert report.kind is ExitKind.STOPPED
    assert not (cluster.home / "n0" / "run").exists()
