"""What the benchmark of convergence makes of its curves, and that all exchanges see the same samples."""

from __future__ import annotations

from itertools import islice
from pathlib import Path

import pytest

from benchmarks.common import kept_runs
from benchmarks.common.report import Report
from benchmarks.convergence import __main__ as benchmark
from benchmarks.convergence.__main__ import Curve, Run, judge, reached
from benchmarks.convergence.trained_rank import batches


def a_curve(reaches_at: int, floor: float = 1.0) -> Curve:
    """Comes to its floor after so many samples, of 200."""
    return [(at, at / 100, floor if at >= reaches_at else 2.0) for at in range(10, 201, 10)]


def test_the_target_is_what_the_exact_sum_comes_to_with_every_seed_and_a_bit_more() -> None:
    report = Report("convergence", quick=True)
    exact = [a_curve(100), a_curve(100, floor=1.1)]
    curves = {"allreduce": exact, "bf16": [a_curve(110), a_curve(110)], "bytegrad": [a_curve(100), a_curve(999)],
              "fp16": [a_curve(150), a_curve(150)]}  # fmt: skip
    judge(report, "digits", curves)
    assert [(bar["bar"].split()[1], bar["ok"]) for bar in report.bars] == [
        ("bf16", True), ("bytegrad", False), ("fp16", False),
    ]  # fmt: skip
    (table,) = report.tables
    assert "1.1220" in table["title"]
    assert [row[:3] for row in table["rows"]] == [
        ["allreduce", "2 of 2", "1.00"], ["bf16", "2 of 2", "1.10"], ["bytegrad", "1 of 2", "1.00"],
        ["fp16", "2 of 2", "1.50"],
    ]  # fmt: skip


def test_a_loss_that_is_not_reached_is_not_made_up() -> None:
    assert reached(a_curve(999), 1.5) is None
    assert reached(a_curve(50), 1.5) == (50, 0.5)


def test_a_kept_run_of_other_code_is_made_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Run] = []
    monkeypatch.setattr(benchmark, "KEPT", tmp_path)
    monkeypatch.setattr(benchmark, "made", lambda run: made.append(run) or a_curve(50))
    run = Run("digits", "bytegrad", 0)
    for code, times in (("this", 1), ("this", 1), ("other", 2)):
        monkeypatch.setattr(benchmark, "code_of", lambda modules, code=code: f"{code} {modules}")
        assert [tuple(point) for point in benchmark.kept(run, again=False)] == a_curve(50)
        assert len(made) == times


def test_the_code_of_a_run_is_the_exchanges_and_the_examples_that_are_trained(monkeypatch: pytest.MonkeyPatch) -> None:
    found: dict[str, str] = {}
    monkeypatch.setattr(kept_runs, "fingerprint", lambda sources: found.update(sources) or "")
    kept_runs.code_of.__wrapped__(benchmark.TRAINED)
    assert {"examples.digits", "examples.bytes_lm", "elastic_core.comm.bytegrad"} <= found.keys()


@pytest.mark.parametrize("task", ["digits", "bytes_lm"])
def test_ranks_share_the_same_global_batches_under_every_exchange(task: str) -> None:
    parts = [Run(task, name, 1).part(rank, "") for name in ("allreduce", "diloco") for rank in range(4)]
    read = [list(islice(batches(100, part), 5)) for part in parts]
    assert read[:4] == read[4:]
    whole = [index for step in range(3) for rank in range(4) for index in read[rank][step]]
    size = min(len(whole), 100)
    assert len(set(whole[:size])) == size, "every sample once before any comes again"
    longest = {part.algorithm: part.most / part.samples for part in parts}
    assert longest == {"allreduce": 1.0, "diloco": 1.5}
