"""Parameters of tasks are fields of the form: what they take is known before the run, and they are their own task's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jsonschema
import pytest

from elastic_core.errors import UserError
from elastic_core.spec.catalogue.entry_catalogue import EntryListed, ParamListed, find_entries
from elastic_core.spec.catalogue.task_params import MOST_FIELDS, param_fields
from elastic_core.spec.form import UNCHOSEN, form_fields, spec_from_form

MODELS = '''
class Params(BaseModel):
    width: int = Field(default=8, ge=4, le=512, description="channels")
    rate: Annotated[float, Field(gt=0, description="of learning")] = 1e-3
    kind: Literal["relu", "gelu"] = "relu"
    bias: bool = True
    layers: list[int] = [64, 32]
    name: str | None = None
    folder: Path
    heads: "Optional[PositiveInt]" = None
    more: dict[str, float] = {}
    pair: tuple[int, str] = (1, "a")

class Cats(Task):
    """Pictures of cats."""
    Params = Params

class Dogs(Task):
    class Params(BaseModel):
        width: int = 3

@trainer_task(metric="eval_loss", params=Params)
def birds(params): ...

@session_task(params=Params)
def fish(session): ...
'''
CATS, DOGS = "pets:Cats", "pets:Dogs"


@pytest.fixture
def entries(tmp_path: Path) -> tuple[EntryListed, ...]:
    (tmp_path / "pets.py").write_text(MODELS)
    return find_entries(tmp_path, "pets")


@pytest.fixture
def fields(entries: tuple[EntryListed, ...]) -> dict[str, dict[str, Any]]:
    return dict(param_fields(entries, UNCHOSEN))


def spec(values: dict[str, Any], entries: tuple[EntryListed, ...], task: str | None = CATS) -> dict[str, Any]:
    given = {"name": "mine", "work_epochs": 2, "batch_min": 8, "batch_max": 8, "entry_point": task}
    return spec_from_form({**given, **values}, {}, entries).params


def test_each_task_has_a_section_of_its_parameters_by_type_bounds_and_words(fields: dict[str, dict[str, Any]]) -> None:
    width = fields[f"{CATS}.width"]
    assert width["section"] == "Parameters of pets:Cats"
    assert (width["type"], width["minimum"], width["maximum"]) == (["integer", "null"], 4, 512)
    assert width["description"] == "channels. Empty: as a preset for pets:Cats gives it, else 8"
    assert fields[f"{CATS}.folder"]["description"] == (
        "Takes Path. Empty: as a preset for pets:Cats gives it, which it needs"
    )
    assert {name.partition(".")[0] for name in fields} == {CATS, DOGS, "pets:birds", "pets:fish"}


@pytest.mark.parametrize(
    ("param", "right", "wrong"),
    [
        ("width", [4, 512, None], [3, 513, 4.5, "8", True]),
        ("rate", [0.5, 1, None], [0, -1, "fast"]),
        ("kind", ["relu", "gelu", None], ["tanh", 1]),
        ("bias", ["true", "false", None], ["yes", 1]),
        ("layers", [[1], [], None], ["64", [1.5], 3]),
        ("name", ["x", None], [3]),
        ("folder", ["/data", 3, {"a": 1}, None], []),
        ("heads", [1, None], [0, "1"]),
        ("more", [{"a": 0.5}, None], [[1], "a"]),
        ("pair", [[1, "a"], None], []),
    ],
)
def test_airflow_refuses_a_wrong_value_before_there_is_a_run(
    fields: dict[str, dict[str, Any]], param: str, right: list[Any], wrong: list[Any]
) -> None:
    """By the check that it makes of each field when somebody presses *Trigger*."""
    schema = fields[f"{CATS}.{param}"]
    for value in right:
        jsonschema.validate(value, schema)
    for value in wrong:
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate(value, schema)


def test_what_is_filled_in_is_given_to_the_task_that_is_trained(entries: tuple[EntryListed, ...]) -> None:
    filled = {f"{CATS}.width": 16, f"{CATS}.bias": "false", f"{CATS}.rate": None, f"{DOGS}.width": None}
    assert spec(filled, entries) == {"width": 16, "bias": False}
    assert spec({**filled, "params": {"width": 4, "kind": "gelu"}}, entries) == {
        "width": 16, "bias": False, "kind": "gelu",
    }  # fmt: skip


def test_parameters_of_another_task_are_refused_with_what_to_do(entries: tuple[EntryListed, ...]) -> None:
    with pytest.raises(UserError) as refused:
        spec({f"{DOGS}.width": 3, f"{CATS}.widht": 3}, entries)
    assert str(refused.value).splitlines() == [
        "the form has 2 problems:",
        "- pets:Dogs.width: is filled in, and the job trains pets:Cats. Empty it, or choose pets:Dogs as the entry "
        "point",
        "- pets:Cats.widht: there is no such key; did you mean 'width'? Allowed: bias, folder, heads, kind, layers, "
        "more, name, pair, rate, width",
    ]
    with pytest.raises(UserError, match="no entry point is chosen"):
        spec({f"{DOGS}.width": 3}, entries, None)
    with pytest.raises(UserError, match=r"there is no task 'pets:Dgos' here .* Did you mean 'pets:Dogs'\?"):
        spec({"pets:Dgos.width": 3}, entries)


def test_a_presets_parameters_are_its_tasks(entries: tuple[EntryListed, ...]) -> None:
    """Given to another task they were refused there, or passed over without a word."""
    preset = {"name": "cats", "entry_point": CATS, "params": {"width": 64, "kind": "gelu"}, "work": {"epochs": 1},
              "batch": {"min": 8, "max": 8}}  # fmt: skip
    presets = {"cats": preset}
    kept = spec_from_form({"preset": "cats", f"{CATS}.width": 16}, presets, entries)
    assert kept.params == {"width": 16, "kind": "gelu"}
    for same in (None, CATS):
        assert spec_from_form({"preset": "cats", "entry_point": same}, presets, entries).params == preset["params"]
    other = spec_from_form({"preset": "cats", "entry_point": DOGS, f"{DOGS}.width": 5}, presets, entries)
    assert (other.entry_point, other.params) == (DOGS, {"width": 5})


def test_where_the_source_cannot_be_read_any_more_the_tasks_code_judges() -> None:
    assert spec({f"{CATS}.anything": 3}, ()) == {"anything": 3}


def test_many_tasks_do_not_make_a_form_without_end() -> None:
    params = tuple(ParamListed(name=f"p{n}", kind="int", default="1", about="") for n in range(9))
    many = tuple(EntryListed(entry_point=f"many:T{n}", about="", params=params) for n in range(100))
    found = list(param_fields(many, UNCHOSEN))
    assert MOST_FIELDS - len(params) < len(found) <= MOST_FIELDS
    (help_of_params,) = (item.schema["description_md"] for item in form_fields({}, many) if item.name == "params")
    assert "many:T99" in help_of_params
