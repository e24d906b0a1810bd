"""`sync` and `servers` of a spec: the layouts that they admit, and what they refuse."""

from __future__ import annotations

from typing import Any

import pytest

from elastic_core.domain import Layout, from_json, to_json
from elastic_core.errors import UserError
from elastic_core.spec import JobSpec
from elastic_core.spec.job import parse_job_spec


def spec(**more: Any) -> JobSpec:
    base = {"name": "a", "entry_point": "a:B", "work": {"epochs": 1}, "batch": {"min": 8, "max": 64},
            "slots": {"min": 1, "max": 4}}  # fmt: skip
    return parse_job_spec({**base, **more})


def admitted(of: JobSpec, count: int) -> list[str]:
    return [str(layout) for layout in of.limits().layouts(count)]


def test_by_default_there_are_no_servers():
    assert spec().limits().cuts == ()


def test_with_servers_a_slot_is_a_worker_or_a_server():
    served = spec(sync="parameter_server", servers={"min": 1, "max": 2})
    assert served.limits().slot_counts == (2, 3, 4)
    assert admitted(served, 3) == ["2 workers and 1 parameter server", "1 worker and 2 parameter servers"]


def test_either_admits_replicas_first():
    either = spec(sync="either", servers={"min": 2, "max": 2})
    assert either.limits().slot_counts == (1, 2, 3, 4)
    assert admitted(either, 4) == ["data 4 x tensor 1 x pipeline 1", "2 workers and 2 parameter servers"]
    assert admitted(either, 2) == ["data 2 x tensor 1 x pipeline 1"]


def test_most_servers_follows_fewest():
    assert spec(sync="either", servers={"min": 6}, slots={"min": 1, "max": 8}).servers.max == 6


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"servers": {"min": 2}}, "servers are given, and sync is 'allreduce'"),
        ({"sync": "parameter_server", "slots": {"max": 1}}, "give slots.max of at least 2"),
        ({"sync": "parameter_server", "slots": {"allowed": [1, 2]}}, "slots.allowed [1] are not possible: a worker"),
        ({"sync": "either", "layouts": {"tensor": [1, 2]}}, "layouts cut the model, and a worker has all of it"),
        ({"sync": "either", "comm": {"algorithm": "auto"}}, "set it to allreduce"),
        ({"sync": "either", "comm": {"hierarchical": True}}, "comm.hierarchical is for replicas"),
        ({"sync": "either", "placement": "auto"}, "set it to none"),
        ({"sync": "either", "batch": {"min": 8, "max": 64, "learning_rate_rule": "adascale"}}, "linear, sqrt or none"),
        ({"sync": "either", "work": {"epochs": 1, "measure": "progress"}}, "set it to samples"),
        ({"sync": "either", "servers": {"min": 3, "max": 2}}, "min 3 is over max 2"),
        ({"sync": "servers"}, "'allreduce', 'parameter_server' or 'either'"),
    ],
)
def test_what_cannot_be_is_refused_in_words(given, words):
    with pytest.raises(UserError) as refused:
        spec(**given)
    assert words in str(refused.value)


def test_a_layout_without_servers_is_stored_as_before():
    assert "servers" not in to_json(Layout(data=2))
    assert from_json(Layout, to_json(Layout(data=2, servers=1))) == Layout(data=2, servers=1)
    assert Layout(data=2, servers=1).world_size == 3
