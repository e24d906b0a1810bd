"""What jobs measured on several types tell about a job that was measured on one."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import numpy as np
import pytest

from elastic_core.domain import Limits, ProfilePoint
from elastic_core.predict.speed.experience import NOTHING, Experience, learn
from elastic_core.predict.speed.fit import job_models
from elastic_core.predict.speed.throughput import StepTime

LIMITS = Limits(slot_counts=(1, 2, 4, 8), types=(), min_batch=16, max_batch=512)
SPEED = {"slow": 1.0, "fast": 5.0}


def point(slots: int, batch: int, kind: str, rng: Random, seconds: float) -> ProfilePoint:
    """`seconds`: of a sample on the slow type. Jobs differ a little in how much the fast one helps them."""
    compute = seconds * (4 + batch / slots) / SPEED[kind] * rng.lognormvariate(0, 0.05)
    sync = 0.0 if slots == 1 else 5 * seconds / SPEED[kind]
    return ProfilePoint(
        num_slots=slots, num_nodes=1, type=kind, global_batch=batch, local_batch=-(-batch // slots), accumulation=1,
        step_seconds=compute + sync, sync_seconds=sync, count=8,
    )  # fmt: skip


def job(seed: int, kinds: tuple[str, ...]) -> tuple[ProfilePoint, ...]:
    rng = Random(seed)
    seconds = rng.lognormvariate(-5, 1.5)
    return tuple(point(n, b, kind, rng, seconds) for kind in kinds for n in (1, 2, 4) for b in (32, 64))


def learnt(num_jobs: int = 6) -> Experience:
    both = [job(seed, ("slow", "fast")) for seed in range(num_jobs)]
    return learn([StepTime.of(job_models(points, LIMITS), LIMITS) for points in both])


def ask(points: tuple[ProfilePoint, ...], kind: str, experience: Experience) -> tuple[float, float]:
    """(seconds, relative error) of 128 samples on four slots."""
    model = StepTime.of(job_models(points, LIMITS, experience), LIMITS)
    one = np.asarray
    seconds = model.seconds(one([4]), one([1]), kind, one([128]), LIMITS)
    return float(seconds[0]), model.relative_error(4, 1, kind, 128, LIMITS)


def test_a_type_never_seen_is_projected_from_a_measured_one() -> None:
    new = job(99, ("slow",))
    truth, _ = ask(job(99, ("slow", "fast")), "fast", NOTHING)
    blind, unsure = ask(new, "fast", NOTHING)
    taught, surer = ask(new, "fast", learnt())
    assert abs(np.log(taught / truth)) < 0.35 < 1.0 < abs(np.log(blind / truth))
    assert surer < unsure


def test_it_works_in_both_directions() -> None:
    new = job(98, ("fast",))
    truth, _ = ask(job(98, ("slow", "fast")), "slow", NOTHING)
    taught, _ = ask(new, "slow", learnt())
    assert abs(np.log(taught / truth)) < 0.35


def test_what_a_job_measured_itself_counts_more_than_what_others_say() -> None:
    slow = job(97, ("slow",))
    odd = tuple(replace(p, type="fast", step_seconds=p.step_seconds * 2, sync_seconds=p.sync_seconds * 2) for p in slow)
    own, _ = ask((*slow, *odd), "fast", learnt())
    on_slow, _ = ask((*slow, *odd), "slow", learnt())
    assert own / on_slow == pytest.approx(2.0, rel=0.2)


def test_jobs_of_one_type_teach_nothing() -> None:
    alone = learn([StepTime.of(job_models(job(seed, ("slow",)), LIMITS), LIMITS) for seed in range(4)])
    assert alone.mean_of("slow") == pytest.approx(NOTHING.mean_of("slow"), abs=0.05)
    assert alone.spread_of("slow") == pytest.approx(NOTHING.spread_of("slow"))
    assert learn([]) == NOTHING


def test_more_jobs_make_it_surer() -> None:
    assert learnt(8).spread_of("fast")[0] <= learnt(1).spread_of("fast")[0] < NOTHING.spread_of("fast")[0]


def test_types_that_the_job_may_not_use_are_left_out() -> None:
    only = replace(LIMITS, types=("slow",))
    assert StepTime.of(job_models(job(1, ("slow",)), only, learnt()), only).types == ("slow",)


def test_experience_is_a_key_for_remembered_fits() -> None:
    assert learnt() == learnt()
    assert hash(learnt()) == hash(learnt())
