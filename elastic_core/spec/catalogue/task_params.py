"""Parameters of tasks as fields of the trigger form: a section for each task, whose fields count where a job trains it.

A field is called by the task's entry point and the parameter, `examples.digits:Digits.width`; no other field's name has
a colon.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from elastic_core.spec.catalogue.entry_catalogue import EntryListed, ParamListed, find_entries
from elastic_core.spec.problems import refuse, unknown_key
from elastic_core.text import did_you_mean

MOST_FIELDS = 200  # of all tasks together: every run keeps a value for each field, though most are empty
ANY = ("string", "number", "boolean", "array", "object")
YES_NO = {"true": "yes", "false": "no"}


def section_of(entry_point: str) -> str:
    return f"Parameters of {entry_point}"


def with_fields(entries: Sequence[EntryListed]) -> tuple[EntryListed, ...]:
    """Those whose parameters are fields: as many as there is room for, in their order. Of the others they are words."""
    found, left = [], MOST_FIELDS
    for entry in entries:
        if entry.params and len(entry.params) <= left:
            found.append(entry)
            left -= len(entry.params)
    return tuple(found)


def param_fields(entries: Sequence[EntryListed], unchosen: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """(name, schema) of each. `unchosen`: how a list to choose from shows that nothing is chosen."""
    for entry in with_fields(entries):
        for param in entry.params:
            yield f"{entry.entry_point}.{param.name}", _schema(entry, param, unchosen)


def is_param(name: str) -> bool:
    return ":" in name


def entries_for(values: Mapping[str, Any], project: Path, patterns: str | Sequence[str]) -> tuple[EntryListed, ...]:
    """What a job may name, for `chosen_params` of a form in which some are filled in; else nobody has to look."""
    any_filled = any(is_param(name) and not _is_empty(value) for name, value in values.items())
    return find_entries(project, patterns) if any_filled else ()


def chosen_params(
    values: Mapping[str, Any], entry_point: Any, entries: Sequence[EntryListed]
) -> dict[str, Any]:  # fmt: skip
    """What a filled form gives the task that it trains, by parameter. `entries`: what a job may name.

    Raises `UserError` for all that is filled in of other tasks, and for parameters that the task does not have.
    """
    known = {entry.entry_point: {param.name: param for param in entry.params} for entry in entries}
    chosen: dict[str, Any] = {}
    problems: list[str] = []
    for name, value in values.items():
        if not is_param(name) or _is_empty(value):
            continue
        task, _, param = name.rpartition(".")
        params = known.get(task, {})
        if task != entry_point:
            problems.append(f"{name}: {_of_another(task, entry_point, known)}")
        elif params and param not in params:
            problems.append(f"{name}: {unknown_key(param, params)}")
        else:
            chosen[param] = _meant(value, params.get(param))
    if problems:
        raise refuse("form", problems)
    return chosen


def _schema(entry: EntryListed, param: ParamListed, unchosen: str) -> dict[str, Any]:
    schema = dict(param.schema)
    if schema.get("type") == "boolean":  # a switch has no third state, in which the preset's value or the default holds
        schema = {"type": "string", "enum": [*YES_NO], "values_display": YES_NO}
    if "enum" in schema:
        schema["enum"] = [*schema["enum"], None]
        schema["values_display"] = {**schema.get("values_display", {}), "null": unchosen}
    kinds = [schema["type"]] if "type" in schema else [*ANY]
    given = f"else {param.default}" if param.default is not None else "which it needs"
    notes = [param.about.rstrip("."), "" if "type" in schema else f"Takes {param.kind}"]
    notes.append(f"Empty: as a preset for {entry.entry_point} gives it, {given}")
    words = ". ".join(note for note in notes if note)
    return {**schema, "type": [*kinds, "null"], "title": param.name, "description": words,
            "section": section_of(entry.entry_point)}  # fmt: skip


def _of_another(task: str, entry_point: Any, known: Mapping[str, Any]) -> str:
    if task not in known:
        return f"there is no task {task!r} here whose parameters could be filled in.{did_you_mean(task, known)}"
    trained = f"the job trains {entry_point}" if entry_point else "no entry point is chosen"
    return f"is filled in, and {trained}. Empty it, or choose {task} as the entry point"


def _meant(value: Any, param: ParamListed | None) -> Any:
    is_choice = param is not None and param.schema.get("type") == "boolean"
    return value == "true" if is_choice and isinstance(value, str) and value in YES_NO else value


def _is_empty(value: Any) -> bool:
    return value is None or value == [] or value == ""
