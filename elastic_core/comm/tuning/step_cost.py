"""Seconds and bytes of a step under an algorithm, predicted from a link and from a step's computation.

    bucket    rounds x latency + bytes x seconds a byte + values x seconds a value of its own computing
    step      computation, and what of the exchange is left when backward ends
    averages  of weights: computation, and what of an exchange computing does not hide, over the steps between two

Buckets are ready one after another during backward, in proportion to their bytes, and are exchanged one after another.
Backward is taken to be two thirds of the computation: two products of matrices where forward has one. It leaves out
that exchange and computation share processors; the best few are tried for that reason.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from math import ceil

import torch

from elastic_core.comm.averaging.weight_averaging import INTERVAL, WeightAveraging
from elastic_core.comm.hooked import FIRST_BUCKET_BYTES, HookedAlgorithm
from elastic_core.comm.traffic import Traffic
from elastic_core.domain import Link

BUCKET_BYTES = 25 * 1024 * 1024  # DDP's, but for the first
BACKWARD = 2 / 3  # of the computation of a step
_HALVINGS = 30
_REHEARSED = 1 << 18  # values; a square of 512
_CPU = torch.device("cpu")


@dataclass(frozen=True, slots=True)
class Cost:
    seconds: float
    sent_bytes: float


def predict(
    algorithm: type[HookedAlgorithm],
    shapes: Sequence[torch.Size],
    world: int,
    link: Link,
    compute_seconds: float,
    bucket_bytes: int = BUCKET_BYTES,
    device: torch.device = _CPU,
) -> Cost | None:
    """Of single precision gradients in these shapes, the model's order; None where the algorithm declares no traffic.

    `compute_seconds`: of a step without exchange. Not collective: it is what this rank expects.
    """
    buckets = in_buckets(shapes, bucket_bytes)
    traffics = algorithm.step_traffic(buckets, world)
    if traffics is None:
        return None
    whole = sum(values_of(bucket) for bucket in buckets)
    own = seconds_per_value(algorithm, device)
    ready = compute_seconds * (1 - BACKWARD)
    done, sent = ready, 0.0
    backward_seconds = compute_seconds * BACKWARD * algorithm.backward_share(shapes, world)
    for bucket, traffic in zip(buckets, traffics, strict=True):
        ready += backward_seconds * values_of(bucket) / whole
        done = max(done, ready) + _on_link(traffic, link) + values_of(bucket) * own
        sent += traffic.sent_bytes
    return Cost(max(done, ready), sent)


def predict_averaging(
    algorithm: type[WeightAveraging],
    shapes: Sequence[torch.Size],
    world: int,
    link: Link,
    compute_seconds: float,
    interval: int = INTERVAL,
    device: torch.device = _CPU,
) -> Cost | None:
    """Of single precision weights in these shapes, in the mean over steps; None where the algorithm declares no
    traffic. What a rank computes for it is never hidden: its processors are those that train."""
    traffic = algorithm.traffic(shapes, world)
    if traffic is None:
        return None
    between = interval if algorithm.at_intervals else 1
    exchange, hidden = _on_link(traffic, link), algorithm.hidden_steps
    waits = 0.0 if hidden is None else max(0.0, exchange - hidden * compute_seconds)
    own = values_of(shapes) * seconds_per_value(algorithm, device)
    seconds = compute_seconds + (waits + own) / between
    if hidden is None and seconds > 0:  # the next begins when there is an interval, and the one before has ended
        between *= max(1, ceil(exchange / (between * seconds)))
    return Cost(seconds, traffic.sent_bytes / between)


def as_measured(
    link: Link,
    algorithm: type[HookedAlgorithm],
    shapes: Sequence[torch.Size],
    world: int,
    compute_seconds: float,
    step_seconds: float,
    device: torch.device = _CPU,
) -> Link:
    """The link on which a step under this algorithm is predicted to take as long as it was measured to.

    A probe sends for a third of a second and may have met a busy moment, or sent too little to tell bytes from
    messages; whole steps have sent more. Seconds a byte are changed, and of a message only where those alone take
    longer than the step did. The link as it is where nothing was waited for, or the algorithm declares no traffic.
    """

    def predicted(changed: Link) -> Cost | None:
        return predict(algorithm, shapes, world, changed, compute_seconds, device=device)

    cost = predicted(Link(0.0, 0.0))
    if cost is None or cost.seconds >= step_seconds:
        return link
    low, high = replace(link, seconds_per_byte=0.0), replace(link, seconds_per_byte=step_seconds / cost.sent_bytes)
    told = predicted(low)
    if told is not None and told.seconds > step_seconds:
        low, high = Link(0.0, 0.0), low
    for _ in range(_HALVINGS):
        middle = Link((low.latency + high.latency) / 2, (low.seconds_per_byte + high.seconds_per_byte) / 2)
        told = predicted(middle)
        if told is not None and told.seconds > step_seconds:
            high = middle
        else:
            low = middle
    return high


def in_buckets(shapes: Sequence[torch.Size], bucket_bytes: int) -> list[list[torch.Size]]:
    """As DDP lays them out: from the last parameter to the first, a bucket being full when it has reached its size."""
    buckets: list[list[torch.Size]] = [[]]
    room = min(FIRST_BUCKET_BYTES, bucket_bytes)
    for shape in reversed(shapes):
        if room <= 0:
            buckets.append([])
            room = bucket_bytes
        buckets[-1].append(shape)
        room -= 4 * shape.numel()
    return buckets


@cache
def seconds_per_value(algorithm: type[HookedAlgorithm | WeightAveraging], device: torch.device = _CPU) -> float:
    """Of what a rank computes for the exchange beside the sum; measured once a process, in a few milliseconds."""
    values = torch.randn(_REHEARSED, generator=torch.Generator().manual_seed(0)).to(device)
    took = []
    for _ in range(3):
        started = time.perf_counter()
        algorithm.rehearse(values)
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        took.append(time.perf_counter() - started)
    return min(took) / _REHEARSED


def _on_link(traffic: Traffic, link: Link) -> float:
    return traffic.rounds * link.latency + traffic.sent_bytes * link.seconds_per_byte


def values_of(shapes: Sequence[torch.Size]) -> int:
    """Of tensors in these shapes."""
    return sum(shape.numel() for shape in shapes)
