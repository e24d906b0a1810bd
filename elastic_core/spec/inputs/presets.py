"""Presets of the trigger form: whole job specs, the JSON files in `examples/specs` of the project's folder."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from elastic_core.errors import UserError
from elastic_core.spec.inputs.value_files import read_values

FOLDER = Path("examples", "specs")  # below the project's folder


def find_presets(project: Path) -> dict[str, Mapping[str, Any]]:
    """By name, which is the file's; {} where there is no such folder.

    Raises `UserError` for a file that holds no JSON object, naming it.
    """
    return {file.stem: _read(file) for file in sorted((project / FOLDER).glob("*.json"))}


def _read(file: Path) -> Mapping[str, Any]:
    try:
        spec = read_values(file, "preset")
    except UserError as error:
        raise UserError(f"{error}. Mend it, or take it away") from None
    if not isinstance(spec, dict):
        raise UserError(f"the preset {file} holds a {type(spec).__name__}: a job spec is a JSON object")
    return spec
