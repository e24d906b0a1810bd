"""The table of a task's speeds: what may be had now is in it, as if everything were."""

from __future__ import annotations

import numpy as np
import pytest

from elastic_core.domain import ProfilePoint
from elastic_core.policy.base.options import Options
from elastic_core.policy.horizon.speeds import task_models as module
from elastic_core.policy.horizon.speeds.task_models import COLD_START_SLOTS, TaskModel, task_models
from elastic_core.predict.speed.experience import NOTHING
from tests.policy.builders import limits, point

LIMITS = limits(tuple(range(1, 33)), batch=(32, 4096))
OPTIONS = Options.of({"a100": [8, 8], "t4": [4] * 8}, (), range(1, 33))
MEASURED = (point(1, 64, 1.0), point(4, 256, 1.2, sync=0.2))


def model(points: tuple[ProfilePoint, ...] = ()) -> TaskModel:
    return task_models.answer((points, LIMITS, OPTIONS.key, NOTHING, True, None))


def test_a_task_starts_on_few_slots_and_at_most_doubles_what_was_measured() -> None:
    assert OPTIONS.counts[model().at].max() == COLD_START_SLOTS
    assert OPTIONS.counts[model(MEASURED).at].max() == 8


def test_what_is_left_out_changes_nothing_of_the_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    some = model(MEASURED)
    monkeypatch.setattr(module, "_reach", lambda points, limits: 32)
    (every,) = module._find([(MEASURED, LIMITS, OPTIONS.key, NOTHING, True, None)])
    assert len(every.at) > len(some.at)
    rows = np.flatnonzero(np.isin(every.at, some.at))
    assert np.array_equal(every.speeds.samples[rows], some.speeds.samples)
    assert np.array_equal(every.speeds.batches[rows], some.speeds.batches)
    best, best_of_every = (speeds.best(64, 500.0) for speeds in (some.speeds, every.speeds))
    assert np.array_equal(best_of_every.rates[rows], best.rates)
    assert np.array_equal(best_of_every.batches[rows], best.batches)
