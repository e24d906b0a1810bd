"""One spec and the values that are tried in it become the specs of many jobs: the members of a group.

A member's id is the group's with the member's number, its name the spec's with the same, so that whoever asks for the
same sweep again asks for the same jobs. All register the model that the spec alone would have registered, and are runs
of its experiment.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from datetime import datetime
from itertools import product
from math import prod
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from elastic_core.domain import SEGMENT_MARK
from elastic_core.errors import UserError
from elastic_core.spec import bounds
from elastic_core.spec.inputs.dotted import put, text_of
from elastic_core.spec.job import JobSpec, parse_job_spec
from elastic_core.spec.parts.job_group import GROUP_ID, MOST_MEMBERS
from elastic_core.spec.problems import NO_KEY, dotted_fields, parse, path_problem, refuse
from elastic_core.text import near_miss, plural, stamped

Values = Mapping[str, Any]  # of a member, by the dotted field of the spec
MOST_SWEEP_BYTES = 120 * 1024  # as JSON: what one request may have, and a little for the rest of it
MOST_SWEPT_BYTES = 2 * 2**20  # of what all members have in common, once for each of them
MOST_NAME = 48  # characters of a job's name
_OWN = ("name", "group")  # what each member gets from the sweep


class Sweep(BaseModel):
    """`grid` or `members`. The spec need be no whole one: what it lacks, each member may be given."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    spec: dict[str, Any] = Field(description="the job spec that members have in common")
    grid: dict[str, list[Any]] | None = Field(
        default=None,
        description="values by field, such as batch.max: a member for each choice of one value a field",
        examples=[{"params.learning_rate": [0.01, 0.03, 0.1], "batch.max": [256, 512]}],
    )
    members: list[dict[str, Any]] | None = Field(
        default=None,
        description="a member each, as its values by field",
        examples=[[{"params.learning_rate": 0.01, "batch.max": 256}, {"params.learning_rate": 0.1}]],
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    job_id: str
    spec: JobSpec
    values: Values


def parse_sweep(spec: JobSpec | Mapping[str, Any], grid: Any = None, members: Any = None) -> Sweep:
    """From plain JSON values. Raises `UserError` that says what is wrong with their form."""
    plain = spec.model_dump(mode="json", exclude_unset=True) if isinstance(spec, JobSpec) else spec
    try:
        grid, members = _plain(grid), _plain(members)
        json.dumps([grid, members])
    except (TypeError, ValueError, RecursionError) as error:
        raise refuse("sweep", [f"its values are no plain JSON: {error}"]) from error
    asked = {"spec": plain, "grid": grid, "members": members}
    _check_bounds(asked)
    return parse(Sweep, asked, "sweep")


def _check_bounds(asked: Mapping[str, Any]) -> None:
    problem = bounds.problem_of(asked, MOST_SWEEP_BYTES)
    if problem is not None:
        raise refuse("sweep", [problem])


def _plain(values: Any) -> Any:
    """Mappings and sequences of a program as the objects and lists of JSON."""
    if isinstance(values, Mapping):
        return {name: _plain(value) for name, value in values.items()}
    return [_plain(value) for value in values] if isinstance(values, list | tuple | range) else values


def member_id(group: str, index: int) -> str:
    """Of three digits, however many members there are: a sweep that is asked for with more of them goes on."""
    return f"{group}-{index:03d}"


def new_group_id(sweep: Sweep, now: datetime) -> str:
    """Of the spec's name and the time, for who gives none."""
    name = sweep.spec.get("name")
    return stamped(name if isinstance(name, str) else "sweep", now)


def expand(group: str, sweep: Sweep) -> list[Member]:
    """The members in order, of a grid with the last field changing first. Raises `UserError` where one is wrong.

    What only a pool or a task's code can say of a member is not asked here.
    """
    check_group_id(group)
    _check_bounds({"spec": sweep.spec, "grid": sweep.grid, "members": sweep.members})
    choices = _choices(sweep)
    _check_all_bytes(sweep.spec, len(choices))
    for field in dict.fromkeys(field for values in choices for field in values):
        _check_field(field, sweep.spec)
    members: list[Member] = []
    wrong: list[tuple[str, UserError]] = []
    for index, values in enumerate(choices):
        try:
            members.append(_member(group, index, sweep.spec, values))
        except UserError as error:
            wrong.append((f"{member_id(group, index)} ({words_of(values)})", error))
    if wrong:
        which, first = wrong[0]
        count = f"{len(wrong)} of {plural(len(choices), 'member')} of the sweep {'is' if len(wrong) == 1 else 'are'}"
        raise UserError(f"{count} wrong, so that none is started. The first is {which}: {first}") from first
    return members


def words_of(values: Values) -> str:
    """E.g. "params.learning_rate 0.1, batch.max 256"."""
    return ", ".join(f"{field} {text_of(value)}" for field, value in values.items())


def swept_values(spec: JobSpec) -> dict[str, Any]:
    """What a member's own values are; none of a job that is in no group."""
    if spec.group is None:
        return {}
    plain = spec.model_dump(mode="json")
    return {field: _at(plain, field) for field in spec.group.swept}


def check_group_id(group: str) -> None:
    if not re.fullmatch(GROUP_ID, group) or ".." in group or SEGMENT_MARK in group:
        raise UserError(
            f"the group's id {group!r} cannot be used: it begins the ids of its jobs. Allowed are 1 to 80 letters, "
            f"digits, '.', '_' and '-', starting with a letter or digit, without '..' and {SEGMENT_MARK!r}"
        )


def _choices(sweep: Sweep) -> list[Values]:
    if (sweep.grid is None) == (sweep.members is None):
        raise UserError("a sweep needs either a grid (lists of values by field) or a list of members, and not both")
    found = _of_grid(sweep.grid) if sweep.grid is not None else _of_list(sweep.members or [])
    seen: dict[str, int] = {}
    for index, values in enumerate(found):
        text = json.dumps(values, sort_keys=True)
        if text in seen:
            raise UserError(f"members {seen[text]} and {index} of the sweep are the same: {words_of(values)}")
        seen[text] = index
    return found


def _of_grid(grid: Mapping[str, Sequence[Any]]) -> list[Values]:
    if not grid:
        raise UserError("the sweep's grid is empty; it needs at least one field with its values")
    for field, values in grid.items():
        if not values:
            raise UserError(f"the sweep gives no values for {field!r}; it needs at least one")
    counts = {field: len(values) for field, values in grid.items()}
    _check_count(prod(counts.values()), " x ".join(f"{count} of {field}" for field, count in counts.items()))
    return [dict(zip(grid, chosen, strict=True)) for chosen in product(*grid.values())]


def _of_list(members: Sequence[Values]) -> list[Values]:
    if not members:
        raise UserError("the sweep's list of members is empty; it needs at least one")
    empty = next((index for index, values in enumerate(members) if not values), None)
    if empty is not None:
        raise UserError(f"member {empty} of the sweep gives no value; it needs at least one field")
    _check_count(len(members), "")
    return list(members)


def _check_count(count: int, product_of: str) -> None:
    if count > MOST_MEMBERS:
        made = f" ({product_of})" if product_of else ""
        raise UserError(f"the sweep has {count} members{made}; allowed are {MOST_MEMBERS}. Take fewer values")


def _check_all_bytes(spec: Mapping[str, Any], count: int) -> None:
    """A request of a hundred kilobytes would else have the API server make and check tens of megabytes of specs."""
    size = len(json.dumps(spec))
    if size * count > MOST_SWEPT_BYTES:
        raise UserError(
            f"the sweep's {count} members would be {size * count} bytes of specs, each with the {size} bytes that they "
            f"have in common; allowed are {MOST_SWEPT_BYTES} in all. Take fewer members at once, or a shorter spec"
        )


def _check_field(field: str, spec: Mapping[str, Any]) -> None:
    path = field.split(".")
    if path[0] in _OWN:
        raise UserError(f"{field!r} cannot be swept: each member gets a {path[0]} of its own from the sweep")
    problem = path_problem(JobSpec, path)
    if problem is None:
        return
    params = spec.get("params")
    given = [f"params.{name}" for name in params] if isinstance(params, Mapping) else []
    near = near_miss(field, [*(name for name in dotted_fields(JobSpec) if name not in _OWN), *given], cutoff=0.6)
    hint = f"; did you mean {near!r}?" if near and problem.startswith(NO_KEY) else f": {problem}"
    raise UserError(f"the sweep names {field!r}, which is no field of a job spec{hint}")


def _member(group: str, index: int, spec: Mapping[str, Any], values: Values) -> Member:
    made: dict[str, Any] = deepcopy(dict(spec))
    name = made.get("name")
    if isinstance(name, str):  # else the spec's own check says what is wrong with it
        suffix = member_id("", index)
        made |= {
            "name": name[: MOST_NAME - len(suffix)] + suffix,
            "registered_model": made.get("registered_model") or name,
        }
    for field, value in values.items():
        put(made, field.split("."), deepcopy(value))
    made["group"] = (
        {"id": group, "name": name, "index": index, "swept": list(values)} if isinstance(name, str) else None
    )
    return Member(job_id=member_id(group, index), spec=parse_job_spec(made), values=values)


def _at(values: Any, field: str) -> Any:
    for part in field.split("."):
        values = values.get(part) if isinstance(values, Mapping) else None
    return values
