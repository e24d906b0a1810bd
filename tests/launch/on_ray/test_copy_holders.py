"""Which nodes outside of a group are asked to hold copies: those that its ranks have copies made on, and no others."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from elastic_core.launch.on_ray.copy_holders import CopyHolders
from elastic_core.launch.on_ray.sealed_order import GroupLaunch
from elastic_core.state.memory_tier.cached_store import holders
from tests.builders import a_spec
from tests.launch.builders import order


def of(copies: int, members: tuple[str, ...]) -> CopyHolders:
    spec = a_spec(checkpoints={"memory_copies": copies})
    launch = GroupLaunch(order=replace(order(), spec=spec), settings={}, worker_command=(), memory_secret="00")
    return CopyHolders(launch, "tests", Path("/nodes"), members)


@pytest.mark.parametrize(
    ("group", "copies", "wanted"),
    [
        (["b"], 1, {"a"}),  # a job on one node, whose loss would take all of it
        (["b"], 2, {"a", "c"}),
        (["a", "b"], 1, set()),  # they hold each other's
        (["a", "b"], 2, {"c"}),
        (["a", "b", "c"], 2, set()),
        (["b"], 0, set()),
    ],
)
def test_a_ring_that_leads_out_of_the_group_names_its_holders(group: list[str], copies: int, wanted: set[str]) -> None:
    members = ("a", "b", "c")
    assert of(copies, members).wanted(group) == wanted
    ring = holders(group, members, copies)  # by which the ranks have their copies made
    assert wanted == {name for names in ring.values() for name in names} - set(group)


def test_a_node_alone_has_nobody_to_ask() -> None:
    assert of(2, ("a",)).wanted(["a"]) == set()
