"""JSON that PostgreSQL and strict clients read, by whichever of the two ways it is written."""

from __future__ import annotations

import json
from dataclasses import replace
from math import inf, nan
from typing import Any

import pytest

from elastic_core.domain import Snapshot, from_json, to_json
from elastic_core.protocol.encoding import dumps, encode, loads
from elastic_core.protocol.process_groups import held_out
from tests.policy.builders import job, nodes, snapshot


@pytest.mark.parametrize("value", [nan, inf, -inf])
def test_numbers_that_json_does_not_know_go_as_words(value: float) -> None:
    words = {"nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"}[str(value)]
    holding = {"loss": [value, {"deep": (1.0, value)}]}
    for text in (dumps(holding), encode(holding)):
        assert json.loads(text) == {"loss": [words, {"deep": [1.0, words]}]}


def test_metrics_that_went_as_words_are_numbers_again() -> None:
    results = {"evaluation": {"loss": nan, "most": inf, "least": -inf, "accuracy": 0.5}}
    assert str(held_out(loads(dumps(results)))) == "{'loss': nan, 'most': inf, 'least': -inf, 'accuracy': 0.5}"
    assert held_out({}) == {}


def test_a_domain_object_is_the_same_by_either_way() -> None:
    remembered = {"price": 1e-300, "seen": (1, None, "ö")}
    told = replace(snapshot(nodes(4), job("a"), job("b", 0.1 + 0.2)), policy_state=remembered)
    as_values: Any = loads(encode(told))
    assert from_json(Snapshot, as_values) == from_json(Snapshot, loads(dumps(to_json(told))))
    assert from_json(Snapshot, as_values).jobs == told.jobs
