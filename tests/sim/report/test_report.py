"""The figures of a comparison, on workloads small enough to work them out by hand."""

from __future__ import annotations

import re
from dataclasses import replace
from itertools import pairwise
from math import isnan
from random import Random
from xml.etree.ElementTree import fromstring

import matplotlib
import pytest

from elastic_core.domain import Limits, Plan, Snapshot, ThroughputModel
from elastic_core.policy import registry
from elastic_core.sim.engine.engine import Options, simulate
from elastic_core.sim.ground_truth.physics import AnalyticPhysics
from elastic_core.sim.ground_truth.workload import SimJob, Workload, nodes, workload
from elastic_core.sim.report.fairness import Alone
from elastic_core.sim.report.gantt import blocks
from elastic_core.sim.report.html_page import render_page
from elastic_core.sim.report.report import FIGURES, Comparison
from elastic_core.sim.workloads.generated_jobs import generated
from elastic_core.text import figure_of_time

POOL = nodes("t4", 1, 4)


def a_job(job_id: str, at: float, seconds: float, slots: int = 1) -> SimJob:
    """Takes `seconds` on one slot, scales perfectly, and starts at once."""
    physics = AnalyticPhysics(
        base_batch=8, work=seconds * 80, fixed_seconds=0.0, per_sample_seconds=1 / 80, exchange_seconds=0.0,
        rescale_seconds=0.0,
    )  # fmt: skip
    limits = Limits(
        slot_counts=(1, 2, 4), types=(), min_batch=8, max_batch=64, requested_slots=slots, requested_batch=8
    )
    return SimJob(job_id=job_id, task="even", submitted_at=at, physics=physics, limits=limits)


def compared(jobs: list[SimJob], *policies: str, until: float = float("inf"), **more: float) -> Comparison:
    given: Workload = workload("by hand", jobs)
    options = Options(noise=0.0, until=until)
    results = [simulate(given, POOL, registry.get(name), options) for name in policies]
    return Comparison(workload=given, nodes=POOL, results=results, **more)  # type: ignore[arg-type]


def test_times_slots_and_makespan_of_two_jobs_that_queue() -> None:
    found = compared([a_job("a", 0, 400, slots=4), a_job("b", 0, 400, slots=4)], "fixed").figures[0]
    assert found["mean_completion"] == pytest.approx((100 + 200) / 2, rel=1e-3)
    assert found["makespan"] == pytest.approx(200, rel=1e-3)
    assert found["slot_hours"] == pytest.approx(800 / 3600, rel=1e-3)
    assert found["utilisation"] == pytest.approx(1.0, rel=1e-3)
    assert found["resizes_per_job"] == 0


def test_the_window_counts_the_jobs_that_ended_in_it() -> None:
    jobs = [a_job("a", 0, 400, slots=4), a_job("b", 0, 400, slots=4)]
    assert compared(jobs, "fixed", window_seconds=150.0).figures[0]["completed_in_window"] == 1
    assert compared(jobs, "fixed", window_seconds=250.0).figures[0]["completed_in_window"] == 2


def test_a_job_alone_on_the_whole_cluster_is_treated_fairly() -> None:
    found = compared([a_job("a", 0, 400, slots=4)], "fixed")
    assert found.fairness[0]["a"] == pytest.approx(1.0, rel=1e-3)
    assert found.figures[0]["unfair_share"] in (0.0, 1.0)  # one job


def test_rho_is_over_the_time_on_one_nth_of_the_cluster() -> None:
    """Two equal jobs at once, one after the other: each could have had two slots, 200 s, from the start."""
    found = compared([a_job("a", 0, 400, slots=4), a_job("b", 0, 400, slots=4)], "fixed")
    # a shares with b all its life (N = 2, two slots, 200 s); b shares half of its life (N = 1.5, 2.67 slots: two)
    assert found.fairness[0]["a"] == pytest.approx(100 / 200, rel=1e-3)
    assert found.fairness[0]["b"] == pytest.approx(200 / 200, rel=1e-3)


def test_a_share_of_less_than_one_slot_is_a_share_of_time() -> None:
    job = a_job("a", 0, 400)
    assert Alone(POOL).fair_seconds(job, contenders=4) == pytest.approx(400)
    assert Alone(POOL).fair_seconds(job, contenders=8) == pytest.approx(800)


def test_a_simulation_cut_short_says_so_and_keeps_its_figures() -> None:
    found = compared([a_job("a", 0, 400, slots=4), a_job("b", 0, 400, slots=4)], "fixed", until=150.0)
    assert not found.complete
    assert found.figures[0]["completed"] == 1
    assert "fixed stopped (time limit) after 150 s simulated, 1 of 2 jobs ended" in found.headline()


def test_nothing_completed_gives_no_figure_rather_than_a_wrong_one() -> None:
    found = compared([a_job("a", 0, 400, slots=4)], "fixed", until=10.0)
    assert isnan(found.figures[0]["mean_completion"])
    assert found.to_json()["results"][0]["figures"]["mean_completion"] is None


def test_the_best_of_a_figure_is_by_its_direction() -> None:
    given = generated(0, num_jobs=6)
    results = [simulate(given, POOL, registry.get(name)) for name in ("fixed", "elastic_batch")]
    found = Comparison(workload=given, nodes=POOL, results=results)
    for figure in FIGURES:
        values = [row[figure.key] for row in found.figures]
        if figure.better and values[0] != values[1]:
            assert found.best(figure) == (max(values) if figure.better > 0 else min(values))


def test_spans_are_written_with_three_digits() -> None:
    assert [figure_of_time(s) for s in (0.0123, 59.91, 1234.0, 7300.0, 1e6, float("nan"))] == [
        "12.3 ms", "59.9 s", "20.6 min", "2.03 h", "11.57 d", "-",
    ]  # fmt: skip


def a_page(**more: float) -> str:
    jobs = [a_job(f"job-{i}", 60.0 * i, 300.0 + 40 * i, slots=1 + 3 * (i % 2)) for i in range(12)]
    return render_page(compared(jobs, "fixed", "fair_share", **more))


def test_the_page_is_one_well_formed_file_that_loads_nothing() -> None:
    text = a_page()
    for outside in ("http://", "https://", "<script", "@import", "url(", "src="):
        assert outside not in text.replace("http://www.w3.org", "")
    body = text[text.index("<body>") : text.index("</html>")]
    fromstring(body)  # every tag is closed


def test_the_page_shows_figures_plots_and_slots_of_every_policy() -> None:
    text = a_page()
    for title in ("Share of jobs completed within a time", "Finish-time fairness", "Jobs that wait for slots",
                  "Slots in use", "Who held which slot"):  # fmt: skip
        assert title in text
    for result in ("fixed", "fair_share"):
        assert f'aria-label="Slots under {result}"' in text
        assert f"<title>{result}</title>" in text


def test_names_cannot_break_the_page() -> None:
    text = render_page(compared([a_job("<script>&", 0, 400)], "fixed"))
    assert "<script>" not in text
    assert "&lt;script&gt;&amp;" in text


def test_the_same_figures_give_the_same_page() -> None:
    comparison = compared([a_job(f"job-{i}", 60.0 * i, 300.0) for i in range(6)], "fixed", "fair_share")
    assert render_page(comparison) == render_page(comparison)


def test_a_users_own_matplotlibrc_does_not_change_the_page() -> None:
    comparison = compared([a_job("a", 0, 400)], "fixed")
    plain = render_page(comparison)
    with matplotlib.rc_context({"axes.grid": True, "font.size": 30, "svg.fonttype": "path", "lines.marker": "o"}):
        assert render_page(comparison) == plain


def test_drawings_name_no_colour_of_their_own_so_that_they_are_read_in_light_and_dark() -> None:
    text = a_page()
    drawings = re.findall(r"<svg.*?</svg>", text, re.S)
    assert len(drawings) == 4 + 2
    for drawing in drawings:
        assert not re.search(r"#[0-9a-f]{3}|rgb\(", drawing)
    used, style = set(re.findall(r"var\((--\w+)\)", "".join(drawings))), text[: text.index("</style>")]
    assert {"--line", "--soft", "--idle", "--c0", "--c1"} <= used
    for variable in used:
        assert style.count(f"{variable}:") == 2, f"{variable} is defined for light and for dark"


def test_every_stretch_that_is_drawn_says_whose_it_is() -> None:
    text = render_page(compared([a_job("a", 0, 400, slots=4), a_job("b$1$", 0, 400, slots=4)], "fixed"))
    assert "<title>a (even): 4 t4 on t4-0, batch 8, from 0.0 s to 100 s</title>" in text
    assert "<title>b$1$ (even): 4 t4 on t4-0, batch 8, from 100 s to 3 min</title>" in text


def test_a_partial_page_says_so() -> None:
    assert "Partial: fixed stopped (time limit)" in a_page(until=200.0)
    assert "Partial:" not in a_page()


@pytest.mark.parametrize("policy", ["fixed", "fair_share", "elastic_batch"])
def test_no_two_blocks_of_the_gantt_share_a_slot_at_a_time(policy: str) -> None:
    given, pool = generated(3, num_jobs=25), nodes("t4", 3, 4)
    result = simulate(given, pool, registry.get(policy))
    drawn = blocks(result.held, pool)
    slots: dict[tuple[str, int], list[tuple[float, float]]] = {
        (b.node, row): [] for b in drawn for row in range(b.row, b.row + b.rows)
    }
    for block in drawn:
        for row in range(block.row, block.row + block.rows):
            slots[block.node, row].append((block.held.start, block.held.end))
    for stretches in slots.values():
        ordered = sorted(stretches)
        assert all(later[0] >= earlier[1] - 1e-6 for earlier, later in pairwise(ordered))
    for held in result.held:
        rows = sum(b.rows for b in drawn if b.held is held)
        assert rows == sum(held.nodes.values())


def test_a_bound_on_decisions_stops_a_simulation_with_what_there_is() -> None:
    given = generated(0, num_jobs=10)
    result = simulate(given, POOL, registry.get("fixed"), Options(max_decisions=5))
    assert (result.decisions, result.complete, result.interrupted) == (5, False, False)
    whole = simulate(given, POOL, registry.get("fixed"), Options(max_decisions=10**6))
    assert whole.complete


def test_what_was_learnt_before_is_told_from_the_start_and_not_fitted_again() -> None:
    learnt = ThroughputModel(params={}, source="fitted")
    seen = []

    def never(*_: object) -> None:
        raise AssertionError("a model was fitted")

    class Spy(type(registry.get("fixed"))):  # type: ignore[misc]
        def decide(self, snapshot: Snapshot, rng: Random) -> Plan:
            seen.extend(view.throughput for view in snapshot.jobs)
            return super().decide(snapshot, rng)  # type: ignore[no-any-return]

    known = [replace(a_job(name, at, 400), learnt=learnt) for name, at in (("a", 0.0), ("b", 100.0))]
    simulate(workload("known", known), POOL, Spy(), fit=never)
    assert seen
    assert set(map(id, seen)) == {id(learnt)}
