"""What is taken for divergence, and what never is."""

from __future__ import annotations

from math import inf, nan

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from elastic_core.domain import ExactLoss, Layout
from elastic_core.host.exits import Diverged
from elastic_core.protocol.process_groups import LaunchOrder
from elastic_core.spec import parse_job_spec
from elastic_core.train.steps.divergence import WINDOW, DivergenceGuard
from tests.train.ledger import make_order

JOB = {"name": "j", "entry_point": "m:C", "work": {"samples": 1000}, "batch": {"min": 8, "max": 64}}
FALLING = ExactLoss(limits=((0.0, 4.0), (100.0, 2.0), (200.0, 1.0)), source="an earlier run")


def an_order(slots: int = 2, exact_loss: ExactLoss | None = None, **comm: object) -> LaunchOrder:
    spec = parse_job_spec({**JOB, "slots": {"min": 1, "max": 4, "types": ["cpu"]}, "comm": comm})
    return make_order(spec, slots=slots, batch=8, total=1000, dataset=100, exact_loss=exact_loss or ExactLoss())


def train(order: LaunchOrder, losses: list[float], world: int = 2, algorithm: str = "") -> None:
    guard = DivergenceGuard(order, world)
    for step, loss in enumerate(losses, start=1):
        guard.stepped(loss, step, 8 * step, algorithm or order.allocation.comm)


losses = st.lists(st.floats(width=32) | st.just(nan), max_size=40)


@given(losses, st.sampled_from(["allreduce", "auto", "qadam"]), st.sampled_from([ExactLoss(), FALLING]))
def test_what_exchanges_exactly_is_never_touched(found: list[float], named: str, known: ExactLoss) -> None:
    model = nn.Linear(1, 1)
    torch.nn.init.constant_(model.weight, nan)
    guard = DivergenceGuard(an_order(exact_loss=known, algorithm=named), world=2)
    for step, loss in enumerate(found, start=1):
        guard.stepped(loss, step, 8 * step, "allreduce")
    guard.check_weights(model, 1)


@pytest.mark.parametrize(
    ("slots", "comm"), [(1, {"algorithm": "bytegrad"}), (2, {"algorithm": "fp16", "guard": False})]
)
def test_nor_is_one_rank_that_exchanges_nothing_nor_a_job_that_wants_no_guard(
    slots: int, comm: dict[str, object]
) -> None:
    train(an_order(slots, FALLING, **comm), [nan] * 20, world=slots)


@pytest.mark.parametrize("algorithm", ["onebit_adam", "qadam", "diloco"])
def test_one_rank_is_watched_that_steps_otherwise_than_under_the_exact_sum(algorithm: str) -> None:
    with pytest.raises(Diverged, match=f"steps 1 to 2 are not finite, under {algorithm}"):
        train(an_order(1, algorithm=algorithm), [nan, nan], world=1)


def test_two_losses_in_a_row_that_are_not_finite_are_divergence_and_one_is_not() -> None:
    train(an_order(algorithm="bytegrad"), [1.0, nan, 1.0, inf, 1.0] * 3)
    with pytest.raises(Diverged, match="the losses of steps 3 to 4 are not finite, under bytegrad"):
        train(an_order(algorithm="bytegrad"), [1.0, 1.0, nan, inf])


def test_of_a_chosen_exchange_the_steps_count_since_the_first_that_was_not_exact() -> None:
    guard = DivergenceGuard(an_order(algorithm="auto", allow="lossy"), world=2)
    for step in range(1, 6):
        guard.stepped(nan, step, 8 * step, "allreduce")
    with pytest.raises(Diverged, match="under bf16"):
        guard.stepped(nan, 6, 48, "bf16")


def test_a_loss_above_the_limit_of_an_exact_run_where_its_steps_began_is_divergence() -> None:
    order = an_order(exact_loss=FALLING, algorithm="bytegrad")
    train(order, [4.0] * WINDOW)  # the limit where they began, though it is lower by now
    with pytest.raises(
        Diverged, match=r"steps 2 to 11 is 4, and an exact run's is at most 3.84 \(forecast from an earl"
    ):
        train(order, [4.0] * (WINDOW + 1))
    train(order, [4.0 - 0.12 * step for step in range(30)])


def test_before_the_first_report_of_an_exact_run_a_job_is_measured_against_its_own_first_steps() -> None:
    later = ExactLoss(limits=((104.0, 2.0), (200.0, 1.0)), source="an earlier run")
    order = an_order(exact_loss=later, algorithm="bytegrad")
    train(order, [3.9] * WINDOW)  # they end at 80 samples: no exact run's loss is known so early
    with pytest.raises(Diverged, match=r"steps 14 to 23 is 3.9, and an exact run's is at most 2 \(forecast from"):
        train(order, [3.9] * 3 * WINDOW)
    with pytest.raises(Diverged, match=r"at most 4 \(twice that of the job's first steps"):
        train(order, [2.0] * WINDOW + [9.0] * 3)


def test_without_a_forecast_twice_the_loss_of_the_first_steps_is_too_much() -> None:
    first = [1.0, *[2.0] * (WINDOW - 2), 3.0]
    train(an_order(algorithm="bytegrad"), first + [3.9] * 3 * WINDOW)
    with pytest.raises(Diverged, match=r"at most 4 \(twice that of the job's first steps\)"):
        train(an_order(algorithm="bytegrad"), first + [4.1] * WINDOW)


def test_one_easy_batch_at_the_beginning_says_nothing_of_the_exchange() -> None:
    train(an_order(algorithm="bytegrad"), [1.0] + [5.0] * 3 * WINDOW)


def test_what_a_job_reported_first_holds_where_it_is_resumed() -> None:
    resumed = an_order(exact_loss=ExactLoss(first=1.0), algorithm="bytegrad")
    with pytest.raises(Diverged, match="at most 2"):
        train(resumed, [2.1] * WINDOW)


def test_weights_that_are_not_finite_are_not_saved() -> None:
    model, guard = nn.Linear(2, 2), DivergenceGuard(an_order(algorithm="local_sgd"), world=2)
    guard.check_weights(model, 3)
    with torch.no_grad():
        model.bias[1] = inf
    with pytest.raises(Diverged, match="weights were not finite after step 3, under local_sgd"):
        guard.check_weights(model, 3)


def an_order_in_stages(stages: int, **comm: object) -> LaunchOrder:
    layouts = {"pipeline": [1, 2]}
    spec = parse_job_spec(
        {**JOB, "slots": {"min": 1, "max": 4, "types": ["cpu"]}, "comm": {"stage_ratio": 8, **comm}, "layouts": layouts}
    )
    layout = Layout(data=2 // stages, pipeline=stages)
    return make_order(spec, slots=2, batch=8, total=1000, dataset=100, layout=layout, exact_loss=FALLING)


def test_stages_that_send_each_other_less_are_watched_though_replicas_exchange_exactly() -> None:
    with pytest.raises(Diverged, match="the losses of steps 1 to 2 are not finite, under stage_ratio"):
        train(an_order_in_stages(2), [nan, nan])
    with pytest.raises(
        Diverged, match=r"an exact run's is at most 3.84 \(forecast from an earlier run\), under stage_rat"
    ):
        train(an_order_in_stages(2), [4.0] * (WINDOW + 1))
    guard = DivergenceGuard(an_order_in_stages(2), world=2)
    model = nn.Linear(2, 2)
    guard.check_weights(model, 3)
    torch.nn.init.constant_(model.bias, inf)
    with pytest.raises(Diverged, match="weights were not finite after step 3, under stage_ratio"):
        guard.check_weights(model, 3)


def test_stages_are_not_where_the_layout_has_none_or_nobody_wants_a_guard() -> None:
    train(an_order_in_stages(1), [nan] * 20)
    train(an_order_in_stages(2, guard=False), [nan] * 20)
