"""Profiles in files: what they say, and what is said of wrong ones."""

from __future__ import annotations

import json
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest

from elastic_core.errors import UserError
from elastic_core.placement.profile_files import parse_profile, read_profile

TYPES = [
    {"name": "cpu", "price": 0.1, "units": 8, "is_cpu": True},
    {"name": "t4", "price": 0.5, "units": 4, "relative_speed": 1.0},
    {"name": "h200", "price": 4.0, "units": 4, "relative_speed": 8.0, "memory_bytes": 1e11},
]
LAYERS = [
    {"name": "table", "kind": "embedding", "on": {"cpu": {"compute_seconds": 1.0}, "t4": {"compute_seconds": 4.0}}},
    {"name": "mlp", "weight_bytes": 5.0, "on": {
        "cpu": {"compute_seconds": 9.0}, "t4": {"compute_seconds": 2.0, "exchange_seconds": 0.5, "alpha": 0.9}}},
]  # fmt: skip
PROFILE = {"name": "m", "batch": 64, "types": TYPES, "layers": LAYERS}


def changed(*path: Any, to: Any) -> dict[str, Any]:
    """The profile with another value at a path."""
    profile: Any = deepcopy(PROFILE)
    place = profile
    for part in path[:-1]:
        place = place[part]
    place[path[-1]] = to
    return dict(profile)


def refusal(profile: Any) -> str:
    with pytest.raises(UserError) as refused:
        parse_profile(profile).problem()
    return str(refused.value)


def test_layers_have_the_times_that_are_given_and_no_edges_mean_a_chain() -> None:
    problem = parse_profile(PROFILE).problem()
    assert problem.layers[0].on["cpu"].compute_seconds == 1.0
    assert problem.layers[1].on["t4"].alpha == 0.9
    assert problem.chains == ((0, 1),)
    assert problem.floor == 0


def test_a_type_without_times_takes_another_types_by_their_relative_speed() -> None:
    mlp = parse_profile(PROFILE).problem().layers[1].on["h200"]
    assert mlp.compute_seconds == 2.0 / 8
    assert (mlp.exchange_seconds, mlp.alpha) == (0.5, 0.9)  # as they are


def test_edges_make_chains_between_forks_and_joins() -> None:
    tower = [{"name": name, "on": {"cpu": {"compute_seconds": 1.0}}} for name in ("a", "b", "c", "d", "e")]
    edges = [["a", "b"], ["b", "e"], ["c", "d"], ["d", "e"]]
    profile = {"batch": 1, "types": TYPES[:1], "layers": tower, "edges": edges}
    assert sorted(parse_profile(profile).problem().chains) == [(0, 1), (2, 3), (4,)]


WRONG = [
    (changed("layers", 0, "on", "cpu", "compute_seconds", to=-1.0),
     "layers.0.on.cpu.compute_seconds: input should be greater than or equal to 0.000000001, seen -1.0"),
    (changed("layers", 1, "on", "t4", "exchange_seconds", to=-0.5), "greater than or equal to 0, seen -0.5"),
    (changed("layers", 1, "on", "t4", "alpha", to=1.5),
     "layers.1.on.t4.alpha: input should be less than or equal to 1, seen 1.5"),
    (changed("types", 0, to={"name": "cpu", "units": 8}),
     "types.0.price: is needed and was not given (what an hour of one unit costs, in any currency, above 0)"),
    (changed("types", 0, "price", to=0), "types.0.price: input should be greater than 0, seen 0"),
    (changed("types", 1, "units", to=0), "types.1.units: input should be greater than or equal to 1, seen 0"),
    (changed("layers", 0, "on", "h20", to={"compute_seconds": 1.0}),
     "layer 'table' has times on 'h20', a type without price and units: no type has that name. Did you mean 'h200'?"),
    (changed("types", 2, "relative_speed", to=None),
     "layer 'table' has no times on 'h200'; measure it there, or give relative_speed for 'h200' "
     "and for a type that it has times on (cpu, t4)"),
    (changed("layers", 0, "activations", to=1), "layers.0.activations: there is no such key"),
    (changed("floor", to=-2), "floor: input should be greater than or equal to 0, seen -2"),
    (changed("layers", 1, "name", to="table"), "names of layers is ['table']; allowed: names that differ"),
    (PROFILE | {"edges": [["table", "mpl"]]}, "an edge names the layer 'mpl', which is not there. Did you mean 'mlp'?"),
    (PROFILE | {"edges": [["table", "mlp"], ["mlp", "table"]]},
     "the layers go round in a circle: table -> mlp -> table; data must flow one way"),
    (PROFILE | {"edges": [["table", "mlp"], ["table", "mlp"]]}, "the edge from 'table' to 'mlp' is given twice"),
    (changed("types", 0, "price", to=float("inf")), "types.0.price: input should be a finite number"),
]  # fmt: skip


@pytest.mark.parametrize(("profile", "words"), WRONG, ids=[words[:40] for _, words in WRONG])
def test_a_wrong_profile_is_refused_in_words(profile: dict[str, Any], words: str) -> None:
    assert words in refusal(profile)


def test_every_problem_of_a_file_is_said_at_once() -> None:
    said = refusal(changed("types", 0, to={"name": "cpu"}))
    assert "2 problems" in said
    assert "price" in said
    assert "units" in said


def test_a_file_that_is_not_there_or_no_json_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="cannot be read: No such file"):
        read_profile(tmp_path / "none.json")
    (tmp_path / "half.json").write_text('{"batch": ')
    with pytest.raises(UserError, match="is no JSON"):
        read_profile(tmp_path / "half.json")
    (tmp_path / "whole.json").write_text(json.dumps(PROFILE))
    assert read_profile(tmp_path / "whole.json").batch == 64
