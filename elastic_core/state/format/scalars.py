"""Plain values, such as a learning-rate scheduler's state, as JSON and back, exactly.

Numbers, strings, lists, tuples, dictionaries, Counters. JSON has no tuples, no keys but strings, no infinity; what JSON
does not know becomes an object that says what it is. Anything else is refused (`UserError`), nothing is pickled.
"""

from __future__ import annotations

import math
from collections import Counter
from typing import Any

from elastic_core.errors import UserError


def pack(value: Any, where: str = "scheduler") -> Any:
    """JSON of a value. Raises `UserError` naming the place of what a checkpoint cannot hold."""
    if value is None or isinstance(value, (bool, int, str)):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else {"float": str(value)}
    if isinstance(value, list):
        return [pack(item, f"{where}[{i}]") for i, item in enumerate(value)]
    if isinstance(value, tuple):
        return {"tuple": [pack(item, f"{where}[{i}]") for i, item in enumerate(value)]}
    if isinstance(value, dict):
        kind = "counter" if isinstance(value, Counter) else "dict"
        return {kind: [[pack(key, where), pack(item, f"{where}.{key}")] for key, item in value.items()]}
    raise UserError(
        f"{where} is a {type(value).__name__}, which a checkpoint cannot hold. It holds numbers, strings, None, and "
        f"lists, tuples and dictionaries of those."
    )


def unpack(value: Any) -> Any:
    if isinstance(value, list):
        return [unpack(item) for item in value]
    if not isinstance(value, dict):
        return value
    ((kind, content),) = value.items()
    if kind == "float":
        return float(content)
    if kind == "tuple":
        return tuple(unpack(item) for item in content)
    pairs = {unpack(key): unpack(item) for key, item in content}
    return Counter(pairs) if kind == "counter" else pairs
