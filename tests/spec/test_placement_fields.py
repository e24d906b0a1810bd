"""What a spec may say of placement, and what contradicts it."""

from __future__ import annotations

from typing import Any

import pytest

from elastic_core.errors import UserError
from elastic_core.spec import parse_job_spec
from elastic_core.spec.form import form_fields, spec_from_form

JOB: dict[str, Any] = {
    "name": "ctr", "entry_point": "examples.ctr:Ctr", "work": {"samples": 100}, "batch": {"min": 32, "max": 32},
    "slots": {"min": 1, "max": 4},
}  # fmt: skip
LAYER = {"name": "mlp", "on": {"cpu": {"compute_seconds": 1.0}}}


def test_a_job_is_not_placed_unless_it_says_so() -> None:
    spec = parse_job_spec(JOB)
    assert (spec.placement, spec.places_layers, spec.limits().placed) == ("none", False, None)
    assert parse_job_spec({**JOB, "placement": "auto"}).places_layers


@pytest.mark.parametrize(
    ("more", "says"),
    [
        ({"placement": "fastest"}, "placement: input should be 'none', 'auto', 'exact' or 'rl_lstm'"),
        ({"placement_floor": 5}, "placement_floor is given, and placement is 'none'"),
        ({"placement": "auto", "placement_floor": 0}, "placement_floor: input should be greater than 0"),
        ({"placement": "auto", "placement_profile": {"layers": [
            {"name": "a", "on": {"cpu": {"compute_seconds": -1.0}}}]}}, r"seconds: .*equal to 0\.000000001, seen -1"),
        ({"placement": "auto", "placement_profile": {"layers": [{**LAYER, "price": 3}]}}, "there is no such key"),
        ({"placement": "auto", "layouts": {"tensor": [1, 2]}}, "layouts cut the model.*leave them out"),
        ({"placement": "auto", "comm": {"algorithm": "bytegrad"}}, "comm.algorithm 'bytegrad'"),
        ({"placement": "auto", "work": {"samples": 10, "patience": 2}}, "work.patience evaluates the whole model"),
        ({"placement": "auto", "batch": {"min": 32, "max": 32, "learning_rate_rule": "adascale"}}, "adascale"),
    ],
)  # fmt: skip
def test_what_contradicts_placement_is_refused_in_words(more: dict[str, Any], says: str) -> None:
    with pytest.raises(UserError, match=says):
        parse_job_spec({**JOB, **more})


def test_the_form_offers_it_in_a_section_of_its_own() -> None:
    fields = {field.name: field.schema for field in form_fields({})}
    assert fields["placement"]["enum"] == ["none", "auto", "exact", "rl_lstm", None]
    assert "Placement" in fields["placement"]["section"]
    assert fields["placement_profile"]["type"] == ["object", "null"]
    filled = {"name": "ctr", "entry_point": "examples.ctr:Ctr", "work_samples": 100, "batch_min": 32, "batch_max": 32,
              "placement": "exact", "placement_floor": 10, "placement_profile": {"layers": [LAYER]}}  # fmt: skip
    spec = spec_from_form(filled, {})
    assert spec.placement_profile is not None
    assert (spec.placement, spec.placement_floor) == ("exact", 10)
    assert spec.placement_profile.layers[0].name == "mlp"
