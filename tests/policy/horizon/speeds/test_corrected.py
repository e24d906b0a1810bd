"""A fit put right by its measurements: met where it was measured, untouched where nothing was."""

from __future__ import annotations

from dataclasses import replace
from math import inf, nan

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from elastic_core.policy.horizon.speeds.corrected import Corrected, seconds_of
from elastic_core.predict.speed import throughput
from elastic_core.predict.speed.step_form import Shapes
from elastic_core.predict.speed.throughput import StepTime, split
from tests.policy.builders import limits, point

LIMITS = limits((1, 2, 4, 8), batch=(16, 512))
SMOOTH = [point(n, 16 * n, 0.3 + 0.02 * n, sync=0.01, kind="gpu") for n in (1, 2, 4, 8)]
TIMES = StepTime.of(throughput.fit(SMOOTH, LIMITS), LIMITS)


def ask(model: StepTime | Corrected, slots: int, batch: int, kind: str = "gpu", num_nodes: int = 1) -> float:
    count, nodes, batches = np.asarray([[slots], [num_nodes], [batch]])
    if isinstance(model, StepTime):
        return float(model.seconds(count, nodes, kind, batches, LIMITS)[0])
    local, accumulation = split(batches, count, LIMITS.max_local(kind))
    shapes = Shapes(count[None], nodes[None], local[None], accumulation[None], np.zeros_like(count)[None])
    return float(seconds_of([model], (kind,), shapes)[0, 0])


@given(factor=st.floats(0.2, 5.0))
def test_a_measured_configuration_is_met_nearly_whatever_the_fit_says(factor: float) -> None:
    odd = replace(SMOOTH[0], step_seconds=SMOOTH[0].step_seconds * factor)
    corrected = Corrected.of(TIMES, [odd])
    before, after = (abs(np.log(ask(model, 1, 16) / odd.step_seconds)) for model in (TIMES, corrected))
    assert after <= 0.3 * before + 1e-9


def test_it_fades_with_the_distance_and_never_reaches_another_type() -> None:
    odd = replace(SMOOTH[0], step_seconds=SMOOTH[0].step_seconds / 3)
    corrected = Corrected.of(TIMES, [odd])
    off = [np.log(ask(TIMES, n, 16 * n) / ask(corrected, n, 16 * n)) for n in (1, 2, 4, 8)]
    assert off == sorted(off, reverse=True)
    assert off[0] > 0.8
    assert off[3] == pytest.approx(0.0, abs=1e-3)
    assert ask(corrected, 1, 16, kind="cpu") == ask(TIMES, 1, 16, kind="cpu")


def test_a_fit_without_measurements_or_with_broken_ones_stays_as_it_is() -> None:
    broken = [replace(SMOOTH[0], step_seconds=seconds) for seconds in (0.0, nan, inf)]
    for points in ((), broken):
        assert ask(Corrected.of(TIMES, points), 4, 64) == ask(TIMES, 4, 64)
