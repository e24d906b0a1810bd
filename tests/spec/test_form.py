"""The trigger form follows the job spec: nothing of the spec is missing, and a filled form means what it says."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elastic_core.errors import UserError
from elastic_core.spec import JobSpec
from elastic_core.spec.catalogue.entry_catalogue import EntryListed, ParamListed
from elastic_core.spec.form import SECTIONS, form_fields, spec_from_form
from elastic_core.spec.goals import GOALS

DIGITS = {
    "name": "digits",
    "entry_point": "examples.digits:Digits",
    "params": {"width": 32},
    "work": {"epochs": 20},
    "batch": {"min": 64, "max": 256},
    "slots": {"min": 1, "max": 4},
}
PRESETS = {"digits": DIGITS}


ENTRIES = (
    EntryListed(
        entry_point="examples.digits:Digits", about="Handwritten digits.",
        params=(ParamListed(name="width", kind="int", default="32", about="channels"),),
    ),
    EntryListed(entry_point="examples.plain_loop:train", about="", params=()),
)  # fmt: skip


def leaves(value: Any, path: tuple[str, ...] = ()) -> set[tuple[str, ...]]:
    if isinstance(value, dict) and path not in {("params",)}:
        return set().union(*(leaves(child, (*path, name)) for name, child in value.items()))
    return {path}


def test_every_leaf_of_the_spec_is_a_field() -> None:
    whole = JobSpec.model_validate(DIGITS).model_dump()
    written = {("group",)}  # by a sweep, which a form is not
    assert {field.path for field in form_fields({}) if field.path} == leaves(whole) - written


def test_every_field_has_a_section_help_and_may_stay_empty() -> None:
    for field in form_fields(PRESETS, ENTRIES):
        assert field.schema["title"]
        assert field.schema.get("description") or field.schema["description_md"], field.name
        if field.path:
            assert field.schema["section"] in SECTIONS.values()
            assert "null" in field.schema["type"]
            assert "enum" not in field.schema or field.schema["values_display"] == {"null": "not chosen"}
            assert field.default is None


def test_a_form_that_nobody_touched_is_no_job_and_says_what_it_needs() -> None:
    untouched = {field.name: field.default for field in form_fields(PRESETS, ENTRIES)}
    with pytest.raises(UserError) as refused:
        spec_from_form(untouched, PRESETS)
    for needed in ("name", "entry_point", "work", "batch"):
        assert f"- {needed}: is needed and was not given" in str(refused.value)


def test_presets_are_shown_with_all_that_they_give() -> None:
    (preset,) = (field for field in form_fields(PRESETS) if field.name == "preset")
    assert preset.default == "none"
    told = "- **digits**: examples.digits:Digits, params.width 32, work.epochs 20, batch.min 64, batch.max 256,"
    assert told in preset.schema["description_md"]


def test_what_a_job_may_name_is_offered_with_its_words_and_parameters() -> None:
    fields = {field.name: field.schema for field in form_fields(PRESETS, ENTRIES)}
    assert fields["entry_point"]["examples"] == ["examples.digits:Digits", "examples.plain_loop:train"]
    assert (
        "- **examples.digits:Digits**: Handwritten digits.\n- **examples.plain_loop:train**"
        in (fields["entry_point"]["description_md"])
    )
    told = fields["params"]["description_md"].splitlines()[-1]
    assert told == "- **examples.digits:Digits**: **width** (int, else 32) channels"


def test_an_empty_form_with_a_preset_is_the_preset() -> None:
    assert spec_from_form({"preset": "digits"}, PRESETS) == JobSpec.model_validate(DIGITS)


def test_what_is_filled_in_replaces_the_presets_value() -> None:
    spec = spec_from_form({"preset": "digits", "batch_max": 512, "slots_allowed": [1, 4], "deadline": None}, PRESETS)
    assert (spec.batch.min, spec.batch.max, spec.slots.allowed) == (64, 512, (1, 4))


def test_samples_replace_the_presets_epochs() -> None:
    work = spec_from_form({"preset": "digits", "work_samples": 1000}, PRESETS).work
    assert (work.epochs, work.samples) == (None, 1000)


def test_what_else_is_filled_in_of_the_work_leaves_the_presets_amount() -> None:
    work = spec_from_form({"preset": "digits", "work_measure": "progress", "work_max_samples": 9}, PRESETS).work
    assert (work.epochs, work.measure, work.max_samples) == (DIGITS["work"]["epochs"], "progress", 9)


def test_both_amounts_filled_in_are_refused() -> None:
    with pytest.raises(UserError, match="both epochs"):
        spec_from_form({"preset": "digits", "work_samples": 1000, "work_epochs": 2}, PRESETS)


def test_a_whole_spec_is_used_instead_of_the_form() -> None:
    other = {**DIGITS, "name": "other"}
    assert spec_from_form({"preset": "digits", "name": "ignored", "spec": other}, PRESETS).name == "other"


def test_presets_are_not_changed_by_use() -> None:
    before = json.dumps(PRESETS)
    spec_from_form({"preset": "digits", "batch_max": 512}, PRESETS)
    assert json.dumps(PRESETS) == before


def test_a_misspelt_field_names_the_near_miss() -> None:
    with pytest.raises(UserError, match="no field 'batch_maxx': did you mean 'batch_max'"):
        spec_from_form({"preset": "digits", "batch_maxx": 1}, PRESETS)


def test_an_unknown_preset_names_those_there_are() -> None:
    with pytest.raises(UserError, match="no preset 'digit': there are digits"):
        spec_from_form({"preset": "digit"}, PRESETS)


@pytest.mark.parametrize("goal", GOALS)
def test_a_goal_gives_what_it_says_over_the_preset(goal: str) -> None:
    (field,) = (field for field in form_fields(PRESETS) if field.name == "goal")
    assert (field.default, goal in field.schema["enum"]) == ("none", True)
    assert GOALS[goal].about in field.schema["description_md"]
    plain = spec_from_form({"preset": "digits"}, PRESETS).model_dump()
    chosen = spec_from_form({"preset": "digits", "goal": goal}, PRESETS).model_dump()
    changed = {path for path in leaves(plain) if at(plain, path) != at(chosen, path)}
    assert changed, "the defaults are no goal"
    assert changed <= leaves(GOALS[goal].gives)


def at(spec: dict[str, Any], path: tuple[str, ...]) -> Any:
    for name in path:
        spec = spec[name]
    return spec


def test_what_is_filled_in_replaces_a_goals_value_and_leaves_its_others() -> None:
    spec = spec_from_form({"preset": "digits", "goal": "slow-network", "comm_algorithm": "bytegrad"}, PRESETS)
    assert (spec.comm.algorithm, spec.comm.allow, spec.name) == ("bytegrad", "lossy", "digits")


def test_an_unknown_goal_names_those_there_are() -> None:
    with pytest.raises(UserError, match="no goal 'cheap': there are lowest-cost, slow-network"):
        spec_from_form({"preset": "digits", "goal": "cheap"}, PRESETS)


def test_everything_that_is_wrong_is_told_at_once() -> None:
    with pytest.raises(UserError, match=r"(?s)name.*entry_point.*work.*batch"):
        spec_from_form({"name": "NOT A NAME", "preset": "none"}, PRESETS)


def test_the_examples_are_valid_presets() -> None:
    files = list((Path(__file__).parents[2] / "examples" / "specs").glob("*.json"))
    assert files
    for file in files:
        assert spec_from_form({"preset": "x"}, {"x": json.loads(file.read_text())})


@given(
    least=st.integers(1, 64), more=st.integers(0, 64), priority=st.integers(-100, 100), seconds=st.floats(1, 1e4),
    precision=st.sampled_from(["fp32", "bf16"]),
)  # fmt: skip
def test_a_spec_put_into_the_form_comes_out_again(
    least: int, more: int, priority: int, seconds: float, precision: str
) -> None:
    spec = JobSpec.model_validate(
        {**DIGITS, "batch": {"min": least, "max": least + more}, "slots": {"min": 1, "max": 1}, "priority": priority,
         "segment": {"seconds": seconds}, "precision": precision}
    )  # fmt: skip
    values: dict[str, Any] = {}
    for field in form_fields({}):
        value: Any = spec.model_dump(mode="json")
        for name in field.path:
            value = value[name]
        if field.path:
            values[field.name] = value
    assert spec_from_form({**values, "preset": "none"}, {}) == spec


def test_the_form_says_what_averages_may_cost() -> None:
    (allow,) = [item for item in form_fields(PRESETS) if item.name == "comm_allow"]
    assert (
        "with averaging it ends at what exchanges the least, and the same samples may teach less"
        in allow.schema["description"]
    )


@pytest.mark.parametrize("odd", [["digits"], {"name": "digits"}, 7])
def test_a_goal_or_preset_that_is_no_text_is_refused_as_one_that_there_is_not(odd: Any) -> None:
    for field in ("preset", "goal"):
        with pytest.raises(UserError, match=f"no {field} "):
            spec_from_form({field: odd}, {})
