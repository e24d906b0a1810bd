"""What exchanges of a model cost, as its ranks tell it: for whoever weighs them on other links, and among other ranks.

The terms are those of `step_cost`, put together: of buckets the first says when the exchange can begin, the last how
much of it is left when backward ends. What a step took in a trial beyond its prediction is counted as computing of the
exchange: ranks share processors, which no declaration says.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from elastic_core.comm.averaging.weight_averaging import INTERVAL, WeightAveraging
from elastic_core.comm.hooked import HookedAlgorithm
from elastic_core.comm.traffic import Traffic
from elastic_core.comm.tuning.step_cost import BACKWARD, BUCKET_BYTES, in_buckets, seconds_per_value, values_of
from elastic_core.domain import ExchangeCost, ExchangeFigures
from elastic_core.domain.exchange_costs import AMONG

_NEVER_WAITED_FOR = 1e6  # steps


def told_costs(
    gradients: Mapping[str, type[HookedAlgorithm]],
    averages: Mapping[str, type[WeightAveraging]],
    shapes: Sequence[torch.Size],
    figures: Mapping[str, ExchangeFigures],
    device: torch.device,
    interval: int = INTERVAL,
) -> tuple[ExchangeCost, ...]:
    """Of those that declare their traffic. `shapes`: of single precision gradients, in the model's order; `figures`:
    what was predicted and measured of some of them; `interval`: steps between two averages."""
    off = {name: _off(known) for name, known in figures.items()}
    told = [of_gradients(algorithm, shapes, device, off.get(name, 0.0)) for name, algorithm in gradients.items()]
    told += [
        of_weights(algorithm, shapes, device, off.get(name, 0.0), interval) for name, algorithm in averages.items()
    ]
    return tuple(cost for cost in told if cost is not None)


def of_gradients(
    algorithm: type[HookedAlgorithm], shapes: Sequence[torch.Size], device: torch.device, off: float = 0.0
) -> ExchangeCost | None:
    """`off`: seconds that a step took beyond what was predicted."""
    buckets = in_buckets(shapes, BUCKET_BYTES)
    each = [algorithm.step_traffic(buckets, world) for world in AMONG]
    sums = [sum(traffics, Traffic(0.0, 0)) for traffics in each if traffics is not None]
    if len(sums) < len(AMONG):
        return None
    whole = values_of(shapes)
    return ExchangeCost(
        algorithm=algorithm.name,
        sent_bytes=tuple(float(traffic.sent_bytes) for traffic in sums),
        rounds=tuple(float(traffic.rounds) for traffic in sums),
        own_seconds=max(whole * seconds_per_value(algorithm, device) + off, 0.0),
        least_share=values_of(buckets[-1]) / whole,
        hidden_backward=BACKWARD * (1 - values_of(buckets[0]) / whole),
    )


def of_weights(
    algorithm: type[WeightAveraging],
    shapes: Sequence[torch.Size],
    device: torch.device,
    off: float = 0.0,
    interval: int = INTERVAL,
) -> ExchangeCost | None:
    """The same of an average of weights."""
    sums = [traffic for traffic in (algorithm.traffic(shapes, world) for world in AMONG) if traffic is not None]
    if len(sums) < len(AMONG):
        return None
    every = interval if algorithm.at_intervals else 1
    hidden = algorithm.hidden_steps
    return ExchangeCost(
        algorithm=algorithm.name,
        sent_bytes=tuple(float(traffic.sent_bytes) for traffic in sums),
        rounds=tuple(float(traffic.rounds) for traffic in sums),
        beside_seconds=max(values_of(shapes) * seconds_per_value(algorithm, device) + off * every, 0.0),
        hidden_steps=_NEVER_WAITED_FOR if hidden is None else float(hidden),
        every=every,
    )


def _off(figures: ExchangeFigures) -> float:
    if figures.measured_seconds is None or figures.predicted_seconds is None:
        return 0.0
    return figures.measured_seconds - figures.predicted_seconds
