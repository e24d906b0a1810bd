"""Values at dotted fields of a spec, `batch.max`: put there by forms, sweeps and forks alike, and told in words."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from elastic_core.errors import UserError
from elastic_core.text import shortened


def put(spec: dict[str, Any], path: Sequence[str], value: Any) -> None:
    """Set `spec[path[0]][path[1]]...`; objects that are not there, or null, are made. Raises `UserError` where there is
    another value, which has no fields."""
    *parents, last = path
    for depth, name in enumerate(parents):
        below = spec.get(name)
        if below is None:
            below = spec[name] = {}
        if not isinstance(below, dict):
            where = ".".join(parents[: depth + 1])
            raise UserError(
                f"{'.'.join(path)} cannot be set: {where} of the spec is {text_of(below)}, which has no fields"
            )
        spec = below
    spec[last] = value


def text_of(value: Any) -> str:
    return shortened(value if isinstance(value, str) else json.dumps(value), 60)
