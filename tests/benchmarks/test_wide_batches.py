"""The study of wide batch ranges: what it judges, and that its runs get the batches that the product would give."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from math import nan
from pathlib import Path

import pytest

from benchmarks.common import report as reporting
from benchmarks.common.report import Report
from benchmarks.wide_batches.__main__ import judge
from benchmarks.wide_batches.elastic_run import Outcome, Segment, Variant, known, spec_of, train
from benchmarks.wide_batches.kept_runs import KeptRuns
from benchmarks.wide_batches.seeds_spread import SeedsSpread
from benchmarks.wide_batches.subjects import RULES, SUBJECTS, Subject
from elastic_core.policy.base.batch_bound import bounded
from tests.policy.builders import point

BASE_METRICS = (0.94, 0.95, 0.96)  # 0.95, one standard deviation 0.01
SMALL = Subject(name="small", entry_point="examples.tabular:Tabular", base=4, epochs=3, params={"width": 4})
# Its noise is measured whatever steps share a report, which time decides: at a base of 4, |E g|^2 may come out below 0.
MEASURED = replace(SMALL, base=16, epochs=8)


def outcome(metric: float, *batches: int) -> Outcome:
    segments = tuple(Segment(slots=1, batch=batch, largest=batch, noise_scale=None) for batch in batches)
    return Outcome(metric=metric, mode="max", steps=10, samples=640, segments=segments, cpu_seconds=1.0)


def bars(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *grown: Outcome) -> list[bool]:
    """Whether each holds: first the metric's, then that batches grew at all."""
    monkeypatch.setattr(reporting, "OUT", tmp_path)
    report = Report("wide_batches", quick=True)
    base = [outcome(metric, 64) for metric in BASE_METRICS]
    judge(report, {("digits", "", Variant.BASE): base, ("digits", "sqrt, samples", Variant.GROWN): grown})
    report.finish()
    return [bar["ok"] for bar in json.loads((tmp_path / "wide_batches.json").read_text())["bars"]]


@pytest.mark.parametrize(("metrics", "holds"), [
    ((0.931, 0.931), True), ((0.99, 0.99), True), ((0.929, 0.929), False), ((0.90, 0.96), True), ((0.95, nan), False),
])  # fmt: skip
def test_the_mean_of_a_cell_may_be_worse_than_the_base_by_two_standard_deviations_of_its_seeds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, metrics: Sequence[float], holds: bool
) -> None:
    assert bars(tmp_path, monkeypatch, *(outcome(metric, 64, 128) for metric in metrics)) == [holds, True]


def test_where_less_is_better_the_bad_side_is_the_other() -> None:
    spread = SeedsSpread.of((55.0, 56.0, 57.0), "min")
    assert spread.holds([57.9])
    assert spread.holds([50.0])
    assert not spread.holds([58.1])


def test_runs_whose_batch_stays_show_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert bars(tmp_path, monkeypatch, outcome(0.95, 64, 64), outcome(0.95, 64, 128), outcome(0.95, 64)) == [
        True,
        False,
    ]


def test_two_seeds_have_no_spread() -> None:
    with pytest.raises(ValueError, match="2 seeds at the base batch have no spread to speak of; run at least 3"):
        SeedsSpread.of((0.94, 0.95), "max")


@pytest.mark.sampled(1)
@pytest.mark.parametrize("rule", RULES, ids=str)
def test_a_grown_run_takes_only_batches_that_the_product_allows_it_by_its_own_reports(tmp_path: Path, rule) -> None:
    spec = spec_of(MEASURED, rule, seed=1, max_per_slot=MEASURED.base // 2)  # of few steps many measure
    run = train(spec, Variant.GROWN, tmp_path)
    assert run.segments[0].batch == MEASURED.base
    assert all(MEASURED.base <= one.batch <= one.largest for one in run.segments)
    assert any(one.noise_scale is not None for one in run.segments)
    unknown = [one for one in run.segments if one.noise_scale is None]
    assert {one.batch for one in unknown} == {MEASURED.base}
    limits = spec.limits()
    for one in run.segments[1:]:
        profile = (point(1, MEASURED.base, 0.1),)
        view = replace(known(spec, 10**9, (), (), None), noise_scale=one.noise_scale, profile=profile)
        assert one.largest <= bounded(view).limits.max_batch <= limits.max_batch


def test_a_run_over_the_whole_range_leaves_what_is_allowed_and_one_at_the_base_never_does(tmp_path: Path) -> None:
    base = train(spec_of(SMALL, RULES[0], seed=1), Variant.BASE, tmp_path / "base")
    wide = train(spec_of(SMALL, RULES[0], seed=1), Variant.WIDE, tmp_path / "wide")
    assert [one.batch for one in base.segments] == [SMALL.base]
    assert wide.largest_batch > 4 * SMALL.base
    assert base.samples == wide.samples
    assert wide.steps < base.steps


@pytest.mark.nightly
def test_workers_come_and_go(tmp_path: Path) -> None:
    run = train(spec_of(SMALL, RULES[2], seed=2), Variant.GROWN, tmp_path, workers=2)
    assert {one.slots for one in run.segments} == {1, 2}


def test_a_run_is_kept_by_its_whole_spec(tmp_path: Path) -> None:
    spec, path = spec_of(SUBJECTS[0], RULES[0], seed=0), tmp_path / "runs.jsonl"
    KeptRuns(path).add(spec, Variant.GROWN, 1, outcome(0.95, 64, 128))
    again = KeptRuns(path)
    assert again.find(spec, Variant.GROWN, 1) == outcome(0.95, 64, 128)
    assert again.find(spec, Variant.WIDE, 1) is None
    other = spec_of(SUBJECTS[0], RULES[0], seed=0, min_efficiency=0.9)
    assert again.find(other, Variant.GROWN, 1) is None
