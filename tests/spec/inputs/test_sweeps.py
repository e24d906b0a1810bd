"""What a sweep's members are, and what is said of one that is wrong before any is started."""

from __future__ import annotations

import re
from typing import Any

import pytest

from elastic_core.errors import UserError
from elastic_core.spec import JobSpec, parse_job_spec
from elastic_core.spec.inputs.sweep_texts import parse_grid
from elastic_core.spec.inputs.sweeps import MOST_SWEPT_BYTES, Member, Sweep, expand, parse_sweep, swept_values
from elastic_core.spec.parts.job_group import Group
from tests.builders import a_spec

SPEC = {**a_spec(params={"learning_rate": 0.05}).model_dump(mode="json", exclude_unset=True)}


def members(grid: Any = None, listed: Any = None, spec: Any = SPEC, group: str = "night") -> list[Member]:
    return expand(group, parse_sweep(spec, grid, listed))


def refused(grid: Any = None, listed: Any = None, spec: Any = SPEC, group: str = "night") -> str:
    with pytest.raises(UserError) as raised:
        members(grid, listed, spec, group)
    return str(raised.value)


def test_a_grid_is_the_product_of_its_lists_the_last_field_changing_first() -> None:
    found = members({"params.learning_rate": [0.01, 0.1], "batch.max": [128, 64, 32]})
    assert [(one.spec.params["learning_rate"], one.spec.batch.max) for one in found] == [
        (0.01, 128), (0.01, 64), (0.01, 32), (0.1, 128), (0.1, 64), (0.1, 32)
    ]  # fmt: skip
    assert [one.job_id for one in found] == [f"night-00{index}" for index in range(6)]
    assert found[4].values == swept_values(found[4].spec) == {"params.learning_rate": 0.1, "batch.max": 64}


def test_a_list_gives_each_member_its_own_fields() -> None:
    first, second = members(listed=[{"batch.max": 64, "seed": 7}, {"slots": {"min": 2, "max": 2}}])
    assert (first.spec.batch.max, first.spec.seed, second.spec.batch.max) == (64, 7, 256)
    assert (second.spec.slots.min, second.spec.slots.max) == (2, 2)
    assert (first.spec.group, second.spec.group) == (
        Group(id="night", name="digits", index=0, swept=("batch.max", "seed")),
        Group(id="night", name="digits", index=1, swept=("slots",)),
    )  # fmt: skip


def test_members_have_names_of_their_own_and_one_model() -> None:
    long = "a" * 48
    first, second = members({"seed": [1, 2]}, spec={**SPEC, "name": long})
    assert (first.spec.name, second.spec.name) == ("a" * 44 + "-000", "a" * 44 + "-001")
    assert {one.spec.registered_model for one in (first, second)} == {long}
    assert {one.spec.registered_model for one in members({"seed": [1, 2]}, spec={**SPEC, "registered_model": "m"})} == {
        "m"
    }
    own = members({"registered_model": ["one", "two"]})
    assert [one.spec.registered_model for one in own] == ["one", "two"]


def test_the_same_sweep_has_the_same_members_and_more_values_at_the_end_go_on_from_there() -> None:
    few = members({"seed": [1, 2]})
    assert members({"seed": [1, 2]}) == few
    assert members({"seed": [1, 2, 3]})[:2] == few


def test_what_the_spec_lacks_a_member_may_be_given() -> None:
    spec = {key: value for key, value in SPEC.items() if key not in ("work", "params")}
    (only,) = members({"work.epochs": [2], "params.model.depth": [3]}, spec=spec)
    assert (only.spec.work.epochs, only.spec.params) == (2, {"model": {"depth": 3}})
    assert SPEC["params"] == {"learning_rate": 0.05}, "the spec itself is left as it was"


def test_a_spec_that_is_parsed_is_swept_as_well() -> None:
    assert members({"seed": [1]}, spec=a_spec())[0].spec.seed == 1


def test_a_members_spec_is_read_back_as_it_was_and_a_job_alone_is_in_no_group() -> None:
    (only,) = members({"seed": [1]})
    assert parse_job_spec(only.spec.model_dump(mode="json")) == only.spec
    assert (a_spec().group, swept_values(a_spec())) == (None, {})


@pytest.mark.parametrize(
    ("grid", "says"),
    [
        ({"batch.mx": [1]}, "the sweep names 'batch.mx', which is no field of a job spec; did you mean 'batch.max'?"),
        ({"learning_rate": [1]}, "did you mean 'params.learning_rate'?"),
        ({"zzz": [1]}, "the sweep names 'zzz', which is no field of a job spec: there is no such key. Allowed: audit,"),
        ({"seed.low": [1]}, "seed is one value, and has no fields of its own"),
        ({"": [1]}, "the sweep names '', which is no field of a job spec"),
        ({"name": ["a"]}, "'name' cannot be swept: each member gets a name of its own from the sweep"),
        ({"group.id": ["a"]}, "'group.id' cannot be swept"),
        ({}, "the sweep's grid is empty"),
        ({"seed": []}, "the sweep gives no values for 'seed'; it needs at least one"),
        ({"seed": 3}, "grid.seed: input should be a valid list, seen 3"),
        ({"seed": list(range(257))}, "the sweep has 257 members (257 of seed); allowed are 256"),
        ({key: list(range(1000)) for key in ("seed", "batch.max", "priority")}, "the sweep has 1000000000 members"),
        ({"seed": [1, 2, 1]}, "members 0 and 2 of the sweep are the same: seed 1"),
        ({"seed": [1, "x", 2, None]}, "2 of 4 members of the sweep are wrong, so that none is started. The first is "
         "night-001 (seed x): the job spec has 1 problem:\n- seed: input should be a valid integer"),
        ({"batch.max": [256, 1]}, "1 of 2 members of the sweep is wrong"),
        ({"comm.algorithm": ["allredcue"]}, "night-000 (comm.algorithm allredcue): the job spec has 1 problem"),
    ],
)  # fmt: skip
def test_what_is_wrong_with_a_grid_is_said(grid: Any, says: str) -> None:
    assert says in refused(grid)


@pytest.mark.parametrize(
    ("listed", "says"),
    [
        ([], "the sweep's list of members is empty"),
        ([{"seed": 1}, {}], "member 1 of the sweep gives no value"),
        ([{"seed": 1}, 3], "members.1: input should be a valid dictionary, seen 3"),
        ({"seed": [1]}, "members: input should be a valid list"),
        ([{"seed": index} for index in range(300)], "the sweep has 300 members; allowed are 256"),
        ([{"seed": 1, "batch.max": 64}, {"batch.max": 64, "seed": 1}], "members 0 and 1 of the sweep are the same"),
        ([{"slots": 3, "slots.max": 2}], "slots.max cannot be set: slots of the spec is 3, which has no fields"),
    ],
)
def test_what_is_wrong_with_a_list_is_said(listed: Any, says: str) -> None:
    assert says in refused(listed=listed)


def test_a_sweep_is_of_a_grid_or_a_list_and_its_group_has_an_id_that_jobs_may_have() -> None:
    for both in ((None, None), ({"seed": [1]}, [{"seed": 2}])):
        assert "either a grid" in refused(*both)
    for group in ("", "a b", "../etc", "a..b", "a" * 81, "x__seg_1"):
        assert "the group's id" in refused({"seed": [1]}, group=group)
    assert "- name: is needed" in refused({"seed": [1]}, spec={k: v for k, v in SPEC.items() if k != "name"})


def test_every_field_of_the_spec_but_a_members_own_can_be_named() -> None:
    for field in JobSpec.model_fields:
        said = refused({field: [[[1]]]})
        assert ("cannot be swept" in said) == (field in ("name", "group")), said
        assert "which is no field" not in said


def test_what_no_request_could_hold_is_refused() -> None:
    assert "its values are no plain JSON: Object of type object" in refused({"seed": [object()]})
    assert "bytes as JSON; allowed are 122880" in refused({"params.text": ["x" * 122_880]})


@pytest.mark.parametrize(
    ("text", "means"),
    [
        ("params.learning_rate=0.01,3e-2, 1", {"params.learning_rate": [0.01, 0.03, 1]}),
        ("sync=allreduce,parameter_server", {"sync": ["allreduce", "parameter_server"]}),
        ("slots.allowed=[1,2],[1,4],null", {"slots.allowed": [[1, 2], [1, 4], None]}),
        ('params.head={"a": 1},{"a": 2}', {"params.head": [{"a": 1}, {"a": 2}]}),
        ("params.on=true,false", {"params.on": [True, False]}),
        ('params.text="1","a,b"', {"params.text": ["1", "a,b"]}),
        ("params.expression=a=b,c", {"params.expression": ["a=b", "c"]}),
        ("params.mixed=relu,0.5", {"params.mixed": ["relu", 0.5]}),
        ("seed=", {"seed": []}),
    ],
)
def test_values_of_the_command_line_are_json_or_texts(text: str, means: Any) -> None:
    assert parse_grid([text]) == means


@pytest.mark.parametrize(
    ("texts", "says"),
    [
        (["seed"], "--sweep takes FIELD=VALUE,VALUE,... such as params.learning_rate=0.01,0.1; seen 'seed'"),
        (["=1"], "--sweep takes FIELD=VALUE"),
        (["seed=1", "seed=2"], "--sweep names 'seed' twice"),
        (["seed=1,,2"], "a value is missing beside a comma"),
        (["params.lr=.5,1"], "'.5' is not a number as JSON writes it"),
        (["params.lr=nan,a"], "'nan' is not a number"),
        (["params.on=True,a"], "'True' is not a word of JSON, which has true, false and null"),
        (["slots.allowed=[1,2"], "'[1' begins like a list"),
    ],
)
def test_what_would_be_taken_for_something_else_is_refused(texts: list[str], says: str) -> None:
    with pytest.raises(UserError, match=re.escape(says)):
        parse_grid(texts)


def nested(depth: int) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = [value]
    return value


@pytest.mark.parametrize(
    ("asked", "says"),
    [
        ({"spec": {**SPEC, "params": {"a": nested(900)}}, "grid": {"seed": [1]}}, "nested more than 32 deep"),
        ({"spec": SPEC, "grid": {"params.a": [nested(900)]}}, "nested more than 32 deep"),
        ({"spec": SPEC, "members": [{"params.a": nested(900)}]}, "nested more than 32 deep"),
        ({"spec": SPEC, "grid": {"params.a": ["a\0b"]}}, "holds the character NUL"),
        ({"spec": SPEC, "grid": {"params.a": ["x" * 130_000]}}, "allowed are 122880"),
    ],
)
def test_what_no_ledger_stores_is_refused_however_it_came(asked: dict[str, Any], says: str) -> None:
    """A request's body is a `Sweep` without `parse_sweep`, which programs and commands use."""
    with pytest.raises(UserError, match="the sweep has 1 problem") as by_request:
        expand("night", Sweep(**asked))
    assert says in str(by_request.value)


def test_a_programs_values_may_be_nested_deeper_than_python_calls() -> None:
    assert "no plain JSON" in refused({"params.a": [nested(5_000)]})


def test_members_have_so_many_bytes_of_specs_in_all() -> None:
    long = {**SPEC, "params": {"text": "x" * 30_000}}
    grid = {"seed": list(range(MOST_SWEPT_BYTES // 30_000 + 1))}
    assert re.search(rf"the sweep's \d+ members would be \d+ bytes of specs.* allowed are {MOST_SWEPT_BYTES}",
                     refused(grid, spec=long))  # fmt: skip
    assert len(members({"seed": grid["seed"][:10]}, spec=long)) == 10
