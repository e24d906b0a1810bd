"""Which exchange, why, and what it saves, in words and as metrics."""

from __future__ import annotations

from dataclasses import replace

import pytest

from elastic_core.domain import ExchangeChoice, ExchangeFallback, ExchangeFigures
from elastic_core.protocol.exchange_words import choice_words, chosen_words, exchange_words, figures_by_name
from elastic_core.spec import parse_job_spec
from tests.builders import a_spec
from tests.examples.test_demo import a_job, an_allocation

EXACT = ExchangeFigures(
    algorithm="allreduce", predicted_seconds=8.1, predicted_bytes=101e6, measured_seconds=8.31, measured_bytes=101e6
)
BYTES = ExchangeFigures(
    algorithm="bytegrad", predicted_seconds=2.6, predicted_bytes=25e6, measured_seconds=2.51, measured_bytes=25.3e6
)
HALVES = ExchangeFigures(algorithm="fp16", predicted_seconds=4.2, predicted_bytes=50e6)
CHOICE = ExchangeChoice(algorithm="bytegrad", num_slots=2, figures=(BYTES, HALVES, EXACT))


def choosing(allow: str | None, **more: object):
    spec = parse_job_spec({**a_spec().model_dump(mode="json"), "comm": {"algorithm": "auto", "allow": allow}})
    return a_job(spec=spec, **more)


def test_a_choice_says_what_it_costs_and_what_the_others_would():
    assert choice_words(CHOICE) == (
        "bytegrad on 2 slots: 2.51 s and 25.3 MB a step, against 8.31 s and 101 MB of allreduce; fp16 4.2 s predicted"
    )
    stays = ExchangeChoice(algorithm="allreduce", num_slots=4, figures=(EXACT,))
    assert choice_words(stays) == (
        "allreduce on 4 slots: 8.31 s and 101 MB a step; nothing else could save a twentieth of a step"
    )


@pytest.mark.parametrize(
    ("algorithm", "costs"),
    [
        ("local_sgd", "weights are averaged: the same samples may teach less"),
        ("partial_backward", "gradients of some of the samples: the same samples may teach less"),
    ],
)
def test_what_a_class_may_cost_besides_time_is_said_with_what_it_saves(algorithm, costs):
    kept = replace(BYTES, algorithm=algorithm, measured_seconds=0.5)
    assert choice_words(replace(CHOICE, algorithm=algorithm, figures=(kept, EXACT))) == (
        f"{algorithm} on 2 slots ({costs}): 0.5 s and 25.3 MB a step, against 8.31 s and 101 MB of allreduce"
    )


def test_where_sizes_of_buckets_were_tried_it_says_which_was_kept():
    sized = replace(CHOICE, figures=(replace(BYTES, bucket_bytes=4 << 20, size_trials=2), EXACT))
    assert choice_words(sized) == (
        "bytegrad on 2 slots: 2.51 s and 25.3 MB a step, against 8.31 s and 101 MB of allreduce, in buckets of 4 MiB, "
        "the best of 3 sizes"
    )
    assert figures_by_name(sized)["exchange/bytegrad/bucket_bytes"] == 4 << 20


@pytest.mark.parametrize(
    ("job", "said"),
    [
        (choosing(None), "auto: allreduce, since comm.allow is exact and admits no other"),
        (choosing("lossy"), "auto (lossy): allreduce, until others have been tried"),
        (
            choosing("lossy", allocation=replace(an_allocation(2), expected_comm="bytegrad")),
            "auto (lossy): allreduce, until others have been tried, bytegrad first: the decision counts with it",
        ),
        (choosing("averaging"), "auto (averaging): allreduce, until others have been tried"),
        (choosing("lossy", exchange=CHOICE), f"auto (lossy): {choice_words(CHOICE)}"),
        (choosing("lossy", exchange=replace(CHOICE, num_slots=4)), "auto (lossy): allreduce, until others have been"),
        (choosing("lossy", exchange=CHOICE, allocation=an_allocation(1)), "auto (lossy): nothing is exchanged on 1"),
        (choosing("lossy", exchange=CHOICE, allocation=None), f"auto (lossy): {choice_words(CHOICE)}"),
    ],
)
def test_of_a_job_it_says_what_is_in_force(job, said):
    assert chosen_words(job).startswith(said)


def test_of_a_named_exchange_it_says_what_that_saves_once_it_is_known():
    spec = parse_job_spec({**a_spec().model_dump(mode="json"), "comm": {"algorithm": "bytegrad"}})
    exact = replace(EXACT, measured_seconds=None, measured_bytes=None)
    known = ExchangeChoice(algorithm="bytegrad", num_slots=2, figures=(BYTES, exact))
    assert exchange_words(a_job(spec=spec)) == "bytegrad (lossy)"
    assert exchange_words(a_job(spec=spec, exchange=known)) == (
        "bytegrad (lossy) on 2 slots: 2.51 s and 25.3 MB a step, against 8.1 s and 101 MB (predicted) of allreduce"
    )
    assert exchange_words(a_job(spec=spec, exchange=replace(known, num_slots=4))) == "bytegrad (lossy)"


def test_figures_are_metrics_by_algorithm_as_far_as_they_are_known():
    metrics = figures_by_name(CHOICE)
    assert len(metrics) == 10
    assert metrics["exchange/bytegrad/measured_seconds"] == 2.51
    assert metrics["exchange/fp16/predicted_bytes"] == 50e6
    assert "exchange/fp16/measured_seconds" not in metrics


def test_a_job_that_fell_back_says_so_whatever_its_spec_asks_for():
    fallback = ExchangeFallback(algorithm="bytegrad", reason="the loss is not finite", step=40, at=0.0)
    said = "allreduce, for good: training diverged under bytegrad and went on from step 40: the loss is not finite"
    assert exchange_words(choosing("lossy", exchange=CHOICE, exchange_fallback=fallback)) == said
    assert exchange_words(a_job(spec=a_spec())) == ""
    assert exchange_words(a_job(spec=a_spec(comm={"algorithm": "fp16"}))) == "fp16 (lossy)"
