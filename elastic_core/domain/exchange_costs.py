"""What an exchange of a job's gradients or weights needs of its ranks and of the links between them.

Ranks tell it of every algorithm that they might choose; together with what messages take on links it says how long a
step waits for each, also where it was never tried (`predict.speed.exchange_forecast`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from elastic_core.domain.number_ranges import AMOUNT, SOME

WORTH = 0.95  # of a step by what is in force: another exchange, or other buckets, must take no more to be chosen
AMONG = (2, 4, 64)  # ranks, of which it is told what they send; between these it is interpolated

Among = tuple[Annotated[float, AMOUNT], ...]  # a figure for each number of ranks in `AMONG`


@dataclass(frozen=True, slots=True)
class Link:
    """A message of n bytes takes `latency + n seconds_per_byte`."""

    latency: Annotated[float, AMOUNT]
    seconds_per_byte: Annotated[float, AMOUNT]


@dataclass(frozen=True, slots=True, kw_only=True)
class ExchangeCost:
    """A communication algorithm for one model. An exchange takes

        exchange = rounds x latency + sent_bytes x seconds a byte + own_seconds

    and a step waits for (max(least_share x exchange, exchange - hidden) + beside_seconds) / every, where
    hidden = hidden_backward x computing of the last micro-batch + hidden_steps x computing of the step.
    """

    algorithm: str
    sent_bytes: Among  # by each rank
    rounds: Among  # messages that wait for each other
    own_seconds: Annotated[float, AMOUNT] = 0.0  # that a rank computes for it, in its line
    beside_seconds: Annotated[float, AMOUNT] = 0.0  # and that nothing hides
    least_share: float = 0.0  # of it that begins only when backward has ended
    hidden_backward: float = 0.0
    hidden_steps: float = 0.0
    every: Annotated[int, SOME] = 1  # steps


@dataclass(frozen=True, slots=True, kw_only=True)
class ExchangeNeeds:
    """What ranks told when they had chosen: the costs of all that they admit, and the link as they met it.

    The link is as one rank meets it while all send; None: nothing was waited for, and no link was probed.
    """

    num_slots: Annotated[int, SOME]
    num_nodes: Annotated[int, SOME]
    type: str
    costs: tuple[ExchangeCost, ...]
    link: Link | None = None
