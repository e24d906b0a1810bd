"""The reference, made of the code: fields of specs, settings, the command line, policies, what users import.

Each entry says what the code says of itself: descriptions of pydantic fields, help of commands, docstrings. Modules are
left to mkdocstrings, which reads their sources without importing them.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import click
import typer.main
from pydantic import BaseModel

from elastic_core.cli import build
from elastic_core.policy import registry
from elastic_core.settings import Settings
from elastic_core.spec import ClusterSpec, JobSpec

MODULES = {
    "task": ("elastic_core.train.task", "elastic_core.train.session", "elastic_core.train.entry"),
    "layouts": ("elastic_core.train.blocks", "elastic_core.train.layouts", "elastic_core.train.styles"),
    "data": ("elastic_core.train.parquet",),
    "client": ("elastic_core.client",),
    "operators": ("elastic_airflow.operators",),
    "exchanges": ("elastic_core.comm.plain_ddp",),
}
TITLES = {
    "task": "A task, and the session of one's own loop",
    "layouts": "Models that are cut",
    "data": "Data",
    "client": "The platform from Python",
    "operators": "Airflow operators",
    "exchanges": "Exchanges in plain torch",
}


def pages() -> dict[str, str]:
    """Markdown by file name."""
    made = {
        "job-spec.md": "# Job spec\n\n" + _intro(JobSpec) + _schema_page(JobSpec.model_json_schema()),
        "cluster.md": "# Cluster file\n\n" + _intro(ClusterSpec) + _schema_page(ClusterSpec.model_json_schema()),
        "settings.md": _settings(),
        "commands.md": _commands(),
        "policies.md": _policies(),
    }
    for name, modules in MODULES.items():
        body = "\n".join(f"::: {module}\n" for module in modules)
        made[f"{name}.md"] = f"# {TITLES[name]}\n\n{body}"
    return made


def _intro(model: type[BaseModel]) -> str:
    return inspect.cleandoc(model.__doc__ or "") + "\n\n"


def _schema_page(schema: Mapping[str, Any]) -> str:
    parts = [_table(schema)]
    for name, part in sorted(schema.get("$defs", {}).items()):
        if "properties" in part:
            parts.append(f"## {name}\n\n{part.get('description', '')}\n\n{_table(part)}")
        elif "enum" in part:
            words = ", ".join(f"`{word}`" for word in part["enum"])
            parts.append(f"## {name}\n\n{part.get('description', '')}\n\nOne of {words}.\n")
    return "\n".join(parts)


def _table(schema: Mapping[str, Any]) -> str:
    required = schema.get("required", ())
    rows = ["| field | type | default | what it says |", "|---|---|---|---|"]
    for name, field in schema.get("properties", {}).items():
        default = "required" if name in required else f"`{_word(field.get('default'))}`"
        rows.append(f"| `{name}` | {_cell(_type(field))} | {default} | {_cell(field.get('description', ''))} |")
    return "\n".join(rows) + "\n"


def _word(value: object) -> str:
    """As one writes it in a spec; of a part with fields of its own, those say theirs."""
    if value is None:
        return "none"
    if isinstance(value, bool):
        return str(value).lower()
    return "of its fields" if isinstance(value, Mapping) and value else str(value)


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def _type(field: Mapping[str, Any]) -> str:
    """In words, with what bounds it."""
    if "$ref" in field:
        name = field["$ref"].rpartition("/")[2]
        return f"[{name}](#{name.lower()})"
    for union in ("anyOf", "oneOf", "allOf"):
        if union in field:
            kinds = [_type(kind) for kind in field[union] if kind.get("type") != "null"]
            return " or ".join(dict.fromkeys(kinds))
    if "enum" in field or "const" in field:
        return ", ".join(f"`{word}`" for word in field.get("enum", [field.get("const")]))
    if field.get("type") == "array":
        return f"list of {_type(field.get('items', {}))}"
    if field.get("type") == "object" and isinstance(field.get("additionalProperties"), Mapping):
        return f"map to {_type(field['additionalProperties'])}"
    bounds = [
        f"{sign} {field[key]}"
        for key, sign in (("minimum", "≥"), ("exclusiveMinimum", ">"), ("maximum", "≤"), ("exclusiveMaximum", "<"))
        if key in field
    ]
    return " ".join([str(field.get("type", "any")), *([f"({', '.join(bounds)})"] if bounds else [])])


def _settings() -> str:
    rows = ["| variable | type | default | what it says |", "|---|---|---|---|"]
    for name, field in Settings.model_json_schema()["properties"].items():
        default = _word(field.get("default"))
        shown = f"`{default}`" if default else "empty"
        rows.append(
            f"| `ELASTIC_{name.upper()}` | {_cell(_type(field))} | {shown} | {_cell(field.get('description', ''))} |"
        )
    intro = (
        "Each is an environment variable of whoever starts the services; [the handbook](../guide/operate.md) says when "
        "to change which."
    )
    return f"# Settings\n\n{intro}\n\n" + "\n".join(rows) + "\n"


def _commands() -> str:
    command = typer.main.get_command(build())
    text = ["# Commands\n"]
    for path, found in _walk(command, ("elastic",)):
        about = inspect.cleandoc(found.help or "")
        text.append(f"{'#' * min(len(path) + 1, 4)} `{' '.join(path)}`\n\n{about}\n")
        given = [parameter for parameter in found.params if parameter.name != "help"]
        if given and len(path) > 1:
            text.append(_parameters(given))
    return "\n".join(text)


def _walk(command: click.Command, path: Sequence[str]) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    context = click.Context(command, info_name=path[-1])
    for name in getattr(command, "list_commands", lambda _: ())(context):
        found = command.get_command(context, name)  # type: ignore[attr-defined]
        yield (*path, name), found
        yield from _walk(found, (*path, name))


def _parameters(parameters: Sequence[click.Parameter]) -> str:
    rows = ["| given | what it says |", "|---|---|"]
    for parameter in parameters:
        names = ", ".join(f"`{name}`" for name in parameter.opts)
        shown = f"`{(parameter.name or '').upper()}`" if parameter.param_type_name == "argument" else names
        rows.append(f"| {shown} | {_cell(getattr(parameter, 'help', '') or '')} |")
    return "\n".join(rows) + "\n"


def _policies() -> str:
    text = [
        "# Policies\n",
        "By the names that `ELASTIC_POLICY`, `elastic policy set` and `elastic simulate --policy` take.\n",
    ]
    for name in registry.names():
        about = inspect.getdoc(type(registry.get(name))) or ""
        text.append(f"## {name}\n\n{about}\n")
    return "\n".join(text)
