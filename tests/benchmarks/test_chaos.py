"""What the chaos harness counts, and what it would notice: a plan of faults, effective time, victims, what is left."""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest

from benchmarks.chaos.__main__ import judge
from benchmarks.chaos.chaos_run import Chosen, Outcome
from benchmarks.chaos.event_log import EventLog
from benchmarks.chaos.fault_kinds import FULL_AT, HANG, OTHERS, Fault, Hurting
from benchmarks.chaos.fault_plan import KILL_WORKER, fault_plan
from benchmarks.chaos.figures import Effective, training_seconds
from benchmarks.chaos.victims import Group, Victims
from benchmarks.common.report import Report
from elastic_core.errors import InfrastructureError
from elastic_core.host.messages import WorkerProcess
from elastic_core.host.process import ProcessId
from elastic_core.state.stores.store_urls import open_store

FULL = Chosen(minutes=30, seed=0, faults=72, lanes=6, job_seconds=480)


def test_a_third_of_the_faults_kill_workers_and_every_kind_comes() -> None:
    for seed in range(20):
        kinds = Counter(fault.kind for fault in fault_plan(seed, 72, 1800, OTHERS))
        assert kinds[KILL_WORKER] == 24
        assert kinds.keys() == {KILL_WORKER, *OTHERS}


def test_the_same_seed_gives_the_same_plan_in_order_of_time_and_within_the_time() -> None:
    plan = fault_plan(7, 72, 1800, OTHERS)
    assert plan == fault_plan(7, 72, 1800, OTHERS) != fault_plan(8, 72, 1800, OTHERS)
    assert [fault.at for fault in plan] == sorted(fault.at for fault in plan)
    assert plan[0].at > 0
    assert plan[-1].at < 1800


def test_three_faults_are_three_killed_workers() -> None:
    assert {fault.kind for fault in fault_plan(0, 3, 1800, OTHERS)} == {KILL_WORKER}


def report(epoch: int, samples: int, speed: float) -> dict[str, Any]:
    return {"epoch": epoch, "samples": samples, "speed": speed}


def kept(epoch: int, since: int, samples: int) -> dict[str, Any]:
    return {"epoch": epoch, "since": since, "samples": samples}


def test_effective_is_the_time_in_steps_of_what_was_committed() -> None:
    reports = [report(1, 100, 10.0), report(1, 200, 20.0), report(2, 200, 50.0)]
    # epoch 1 committed 150 of its 200 samples; what it trained beyond was lost, and done again by epoch 2
    assert training_seconds([kept(1, 0, 150), kept(2, 150, 200)], reports) == pytest.approx(
        100 / 10 + 50 / 20 + 50 / 50
    )


def test_an_epoch_without_a_report_went_at_the_jobs_mean_speed() -> None:
    assert training_seconds([kept(1, 0, 100), kept(2, 100, 160)], [report(1, 100, 20.0)]) == pytest.approx(5 + 3)


def judged(outcome: Outcome, chosen: Chosen = FULL) -> dict[str, bool]:
    counted = Report("chaos", quick=False)
    judge(counted, chosen, outcome, full=True)
    return {bar["bar"]: bar["ok"] for bar in counted.bars}


def a_good_outcome(**changed: Any) -> Outcome:
    killed = [Fault(kind=KILL_WORKER, at=0.0) for _ in range(24)]
    job = {"name": "lane-0-0", "state": "finished", "airflow": "success", "ended_well": True, "wrong": [],
           "samples": 1, "segments": 1, "attempts_lost": 0}  # fmt: skip
    values: dict[str, Any] = {
        "faults": [*killed, *(Fault(kind=kind, at=0.0) for kind in (*OTHERS, *OTHERS))], "jobs": [job],
        "recoveries": dict.fromkeys(range(24), 8.0), "hung": {1: 61.0}, "hang_bound": 64.0,
        "effective": [Effective("lane-0-0", 100.0, 95.0)],
    }  # fmt: skip
    return Outcome(**{**values, **changed})


def test_a_run_in_which_all_promises_are_kept_holds_every_bar() -> None:
    assert set(judged(a_good_outcome()).values()) == {True}
    few = judged(a_good_outcome(), Chosen(minutes=30, seed=0, faults=3, lanes=6, job_seconds=480))
    assert few["effective training time"]


@pytest.mark.parametrize(
    ("bar", "changed"),
    [
        ("faults", {"faults": [Fault(kind=KILL_WORKER, at=0.0)] * 59}),
        ("kinds of faults", {"faults": [Fault(kind=KILL_WORKER, at=0.0)] * 60}),
        ("workers killed", {"faults": [Fault(kind=kind, at=0.0) for kind in OTHERS] * 4}),
        ("samples lost or doubled, promises broken", {"violations": ["invariant 5: ..."]}),
        ("slots held twice", {"held_twice": {"node-a:0 by [1, 2]"}}),
        ("processes left", {"orphans": ["12 python"]}),
        ("jobs finished", {"jobs": []}),
        ("hang found, slowest", {"hung": {1: 65.0}}),
        ("hang found, slowest", {"not_found": [Fault(kind=HANG, at=0.0)]}),
        ("recovery, median", {"recoveries": dict.fromkeys(range(24), 16.0)}),
        ("recovery, 95th percentile", {"recoveries": {**dict.fromkeys(range(20), 8.0), 20: 40.0, 21: 50.0}}),
    ],
)
def test_a_broken_promise_breaks_its_bar(bar: str, changed: dict[str, Any]) -> None:
    assert judged(a_good_outcome(**changed))[bar] is False


def test_little_effective_time_breaks_its_bar() -> None:
    few = Chosen(minutes=30, seed=0, faults=3, lanes=6, job_seconds=480)
    outcome = a_good_outcome(effective=[Effective("lane-0-0", 100.0, 89.0)])
    assert judged(outcome, few)["effective training time"] is False


def hurting(home: Path) -> Hurting:
    Hurting.lay_store(home)
    return Hurting(SimpleNamespace(home=home), lambda: None)  # type: ignore[arg-type]  # nothing else of it is used


def test_a_store_that_was_taken_away_fails_as_infrastructure_and_has_all_of_it_when_it_is_back(tmp_path: Path) -> None:
    chaos, store = hurting(tmp_path), open_store(str(tmp_path / "store"))
    store.put("job/manifest.json", b"kept")
    assert chaos.take_store_away("store away", Random(0)).facts["seconds"] > 0
    with pytest.raises(InfrastructureError):
        store.put("job/other", b"lost")
    with pytest.raises(InfrastructureError):
        store.get("job/manifest.json")
    chaos.end()
    assert store.get("job/manifest.json") == b"kept"
    assert list(store.list("")) == ["job/manifest.json"]


WRITER = """
import sys
for line in sys.stdin:
    try:
        print(open(sys.argv[1], "wb", buffering=0).write(bytes(int(line))), flush=True)
        open(sys.argv[1], "ab", buffering=0).write(b"more")
        print("more", flush=True)
    except OSError as error:
        print(error.errno, flush=True)
"""


def test_on_a_full_disk_files_grow_no_further_until_there_is_room_again(tmp_path: Path) -> None:
    command = [sys.executable, "-c", WRITER, str(tmp_path / "part")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as writer:
        process = ProcessId.of(writer.pid)
        assert process is not None
        group = Group("job", 1, process, (WorkerProcess(*process, "node-a:0"),))
        chaos = hurting(tmp_path)
        chaos.groups = lambda: [group]  # type: ignore[method-assign]

        def written(size: int) -> list[str]:
            assert writer.stdin is not None
            assert writer.stdout is not None
            writer.stdin.write(f"{size}\n")
            writer.stdin.flush()
            return [writer.stdout.readline().strip(), writer.stdout.readline().strip()]

        assert written(FULL_AT) == [str(FULL_AT), "more"]
        assert chaos.fill_disk("disk full", Random(0)) is not None
        assert written(FULL_AT) == [str(FULL_AT), str(errno.EFBIG)]
        chaos.end()
        assert written(FULL_AT) == [str(FULL_AT), "more"]
        writer.kill()


def test_what_names_the_home_and_lives_is_left(tmp_path: Path) -> None:
    left = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)", tmp_path / "x"])
    try:
        assert [line.split()[0] for line in Victims(tmp_path).left()] == [str(left.pid)]
    finally:
        os.kill(left.pid, signal.SIGKILL)
        left.wait()
    assert Victims(tmp_path).left() == []


def test_the_log_can_be_read_while_it_is_written(tmp_path: Path) -> None:
    log = EventLog(tmp_path / "log.jsonl")
    log.say("kill a worker", show=False, pid=12)
    assert [json.loads(line)["pid"] for line in log.path.read_text().splitlines()] == [12]
    log.close()
