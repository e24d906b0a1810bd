"""The parameter-server form: recovers what it was measured on, never answers nonsense, knows where scaling ends."""

from __future__ import annotations

from itertools import pairwise
from math import inf, isfinite, nan
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elastic_core.predict.speed.parameter_server import ParameterServerTime, PsPoint, fit

TRUE = ParameterServerTime(
    forward=0.02, backward=0.1, exchange=0.3, update=0.05, per_worker=0.01, per_server=0.008, relative_error=0.0
)
CONFIGURATIONS = [(1, 1), (2, 1), (4, 1), (4, 2), (8, 2), (8, 4)]


def point(workers: int, servers: int, batch: float = 64, noise: float = 0.0, speed: float = 1.0) -> PsPoint:
    return PsPoint(
        workers=workers,
        servers=servers,
        global_batch=batch,
        step_seconds=TRUE.seconds(workers, servers, batch, speed) * (1 + noise),
        worker_speed=speed,
    )


def test_the_step_is_the_sum_of_its_phases() -> None:
    """By hand: 16 samples a worker; 0.32 + 0.1 forward and backward, 0.6 push and pull, 0.025 update, 0.04 + 0.016."""
    assert TRUE.seconds(4, 2, 64) == pytest.approx(0.32 + 0.1 + 0.6 + 0.025 + 0.04 + 0.016)
    assert TRUE.compute(4, 64, worker_speed=2.0) == pytest.approx(0.21)
    assert TRUE.samples_per_second(4, 2, 64) == pytest.approx(64 / TRUE.seconds(4, 2, 64))


def test_measured_configurations_are_met_and_others_too() -> None:
    model = fit([point(w, p, batch) for w, p in CONFIGURATIONS for batch in (32, 128)])
    assert model.num_points == 12
    for workers, servers, batch in ((2, 2, 64), (6, 3, 96), (12, 6, 128), (8, 1, 64)):
        assert model.seconds(workers, servers, batch) == pytest.approx(TRUE.seconds(workers, servers, batch), rel=0.05)


def test_noise_of_a_twentieth_costs_little() -> None:
    rng = Random(1)
    model = fit([point(w, p, b, rng.gauss(0, 0.05)) for w, p in CONFIGURATIONS for b in (32, 128)])
    for workers, servers in ((2, 2), (6, 3), (12, 6)):
        assert model.seconds(workers, servers, 64) == pytest.approx(TRUE.seconds(workers, servers, 64), rel=0.12)


def test_a_faster_worker_is_predicted_from_a_slower_one() -> None:
    model = fit([point(w, p, b) for w, p in CONFIGURATIONS for b in (32, 128)])
    assert model.seconds(2, 2, 64, worker_speed=10) == pytest.approx(TRUE.seconds(2, 2, 64, 10), rel=0.1)


def test_points_of_different_workers_are_fitted_together() -> None:
    model = fit([point(w, p, b, speed=s) for w, p in CONFIGURATIONS for b, s in ((32, 1.0), (128, 8.0))])
    assert model.seconds(4, 2, 64, 8.0) == pytest.approx(TRUE.seconds(4, 2, 64, 8.0), rel=0.05)


def test_measured_compute_tells_the_passes_from_the_exchange() -> None:
    """Two points at one ratio of workers to servers cannot tell; their passes' time can."""
    seen = [point(2, 2, 64), point(2, 2, 128)]
    split = [
        PsPoint(
            workers=p.workers, servers=p.servers, global_batch=p.global_batch, step_seconds=p.step_seconds,
            compute_seconds=TRUE.compute(p.workers, p.global_batch),
        )
        for p in seen
    ]  # fmt: skip
    assert fit(split).compute(2, 64) == pytest.approx(TRUE.compute(2, 64), rel=0.1)


def test_one_point_sets_the_scale() -> None:
    model = fit([point(2, 1)])
    assert model.seconds(2, 1, 64) == pytest.approx(TRUE.seconds(2, 1, 64), rel=0.05)
    assert model.seconds(4, 2, 64) < model.seconds(2, 1, 64)
    assert model.relative_error > fit([point(w, p) for w, p in CONFIGURATIONS]).relative_error


def test_a_job_never_seen_gains_less_and_less_from_workers() -> None:
    model = fit([])
    rates = [model.samples_per_second(n, n, 32) for n in (1, 2, 4, 8)]
    gains = [later / sooner for sooner, later in pairwise(rates)]
    assert 1 < gains[0] < 2
    assert gains == sorted(gains, reverse=True)


odd = st.sampled_from([nan, inf, -inf, 0.0, -1.0, 1e-12, 0.01, 1.0, 1e6, 1e12])


@given(
    st.lists(
        st.builds(
            PsPoint, workers=st.integers(-1, 40), servers=st.integers(-1, 40), global_batch=odd, step_seconds=odd,
            worker_speed=odd, server_speed=odd, compute_seconds=st.none() | odd, count=st.integers(-1, 10**6),
        ),
        max_size=8,
    )
)  # fmt: skip
def test_no_data_makes_it_raise_or_answer_nonsense(points: list[PsPoint]) -> None:
    model = fit(points)
    parameters = (model.forward, model.backward, model.exchange, model.update, model.per_worker, model.per_server)
    assert all(value >= 0 and isfinite(value) for value in parameters)
    assert 0 < model.seconds(3, 2, 64) < inf
    assert isfinite(model.relative_error)
