"""JSON of the wire and of the ledger: numbers that JSON does not know (a loss may be NaN) go as strings.

pydantic reads them back as floats. PostgreSQL's jsonb would refuse a bare NaN, and so would strict clients.
"""

from __future__ import annotations

import json
import math
from typing import Any


def dumps(value: Any) -> str:
    """JSON text of plain values (as `domain.to_json` gives them)."""
    return json.dumps(_finite(value), allow_nan=False, separators=(",", ":"))


def loads(text: str | bytes) -> Any:
    return json.loads(text)


def _finite(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return value
