"""What ranks tell of an exchange says, without torch and elsewhere, what they themselves would predict there."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from elastic_core.comm.algorithms import _AVERAGING, _GLOO
from elastic_core.comm.tuning.step_cost import predict, predict_averaging, seconds_per_value
from elastic_core.comm.tuning.told_costs import of_gradients, of_weights, told_costs
from elastic_core.domain import ExchangeCost, ExchangeFigures, Link
from elastic_core.predict.speed.exchange_forecast import ExchangeForecast, Links
from elastic_core.predict.speed.step_form import Shapes
from tests.comm.tuning.test_auto_averages import ALL
from tests.comm.tuning.test_step_cost import LINKS, SECONDS, SHAPES, Undeclared

CPU = torch.device("cpu")
WORLDS = st.sampled_from([2, 4, 64])
WHOLE = [name for name in _GLOO if name != "partial_backward"]  # whose backward depends on the ranks


def told(cost: ExchangeCost, world: int, link: Link, computing: float) -> float:
    """Seconds of a step by what was told, on one node."""
    forecast = ExchangeForecast((cost,), (("cpu", Links(within=link)),), named=True)
    shapes = Shapes(*(np.asarray([value]) for value in (world, 1, 16, 1, 0)))
    return float(forecast.expected(("cpu",), shapes, np.asarray([computing])).seconds[0])


@given(LINKS, SECONDS, WORLDS)
@pytest.mark.parametrize("name", WHOLE)
def test_of_an_exchange_of_gradients(name: str, link: Link, computing: float, world: int) -> None:
    cost = of_gradients(_GLOO[name], SHAPES, CPU)
    predicted = predict(_GLOO[name], SHAPES, world, link, computing).seconds
    assert told(cost, world, link, computing) == pytest.approx(predicted, rel=0.05, abs=1e-6)


@given(LINKS, SECONDS, WORLDS)
@pytest.mark.parametrize("name", ALL)
def test_of_an_average_of_weights(name: str, link: Link, computing: float, world: int) -> None:
    cost = of_weights(_AVERAGING[name], SHAPES, CPU)
    predicted = predict_averaging(_AVERAGING[name], SHAPES, world, link, computing).seconds
    assert told(cost, world, link, computing) == pytest.approx(predicted, rel=1e-6)


def test_what_a_trial_took_beyond_its_prediction_is_computing_of_the_exchange() -> None:
    link = Link(0.0, 1e-6)
    predicted = predict(_GLOO["bytegrad"], SHAPES, 2, link, 1.0).seconds
    figures = ExchangeFigures(algorithm="bytegrad", predicted_seconds=predicted, measured_seconds=predicted + 0.5)
    classes = {"allreduce": _GLOO["allreduce"], "bytegrad": _GLOO["bytegrad"]}
    exact, byte = told_costs(classes, {}, SHAPES, {"bytegrad": figures}, CPU)
    assert told(byte, 2, link, 1.0) == pytest.approx(predicted + 0.5, rel=0.02)
    assert exact.own_seconds == pytest.approx(
        sum(shape.numel() for shape in SHAPES) * seconds_per_value(_GLOO["allreduce"], CPU)
    )
    quicker = replace(figures, measured_seconds=0.0)
    assert told_costs(classes, {}, SHAPES, {"bytegrad": quicker}, CPU)[1].own_seconds == 0.0


def test_who_declares_no_traffic_is_not_told_of() -> None:
    assert of_gradients(_GLOO["partial_backward"], SHAPES, CPU) is not None
    assert told_costs({"undeclared": Undeclared}, {}, SHAPES, {}, CPU) == ()
