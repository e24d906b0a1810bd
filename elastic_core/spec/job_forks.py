"""The spec of a fork: its parent's, with what may differ where training goes on from the parent's checkpoint.

What optimizer state, learning-rate schedule, batch controller and data cursor of the checkpoint rest on stays.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from elastic_core.domain import to_json
from elastic_core.errors import UserError
from elastic_core.spec.job import JobSpec, parse_job_spec
from elastic_core.text import stamped

MAY_DIFFER = (
    "name", "work", "batch", "slots", "comm", "segment", "checkpoints", "priority", "queue", "deadline", "prefer",
    "budget", "audit", "registered_model",
)  # fmt: skip
_AMOUNTS = ("epochs", "samples")  # of which a spec's work has exactly one


def forked_spec(parent: JobSpec, changes: Mapping[str, Any]) -> JobSpec:
    """`changes`: a part of a spec, e.g. {"work": {"epochs": 20}, "priority": 5}. What it leaves out is the parent's.

    Raises `UserError` for a value that no spec may have, and for all that may not differ from the parent's.
    """
    merged = _merged(to_json(parent), changes)
    work, batch = changes.get("work"), merged["batch"]
    if isinstance(work, Mapping):
        given = [name for name in _AMOUNTS if work.get(name) is not None]
        merged["work"].update({name: None for name in _AMOUNTS if given and name not in work})
    if isinstance(batch, dict) and batch.get("min") != parent.batch.min and batch.get("base") is None:
        batch["base"] = parent.batch.base or parent.batch.min  # it would follow another `min`
    spec = parse_job_spec(merged)
    _check(parent, spec)
    return spec


def fork_id(checkpoint_id: int, changes: Mapping[str, Any]) -> str:
    """For a fork whose user gives none: of its own name, or else the checkpoint, and the time."""
    name = changes.get("name")
    return stamped(name if isinstance(name, str) else f"fork-{checkpoint_id}")


def _merged(known: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    merged = dict(known)
    for name, value in changes.items():
        before = merged.get(name)
        both = isinstance(before, Mapping) and isinstance(value, Mapping)
        merged[name] = _merged(before, value) if both else value  # type: ignore[arg-type]
    return merged


def _check(parent: JobSpec, spec: JobSpec) -> None:
    before, after = to_json(parent), to_json(spec)
    wrong = [name for name in before if name not in MAY_DIFFER and after[name] != before[name]]
    if spec.work.measure != parent.work.measure:
        wrong.append("work.measure")
    if (spec.batch.base or spec.batch.min) != (parent.batch.base or parent.batch.min):
        wrong.append("batch.base")
    if wrong:
        raise UserError(
            f"a fork cannot have another {', '.join(wrong)} than its parent: the optimizer's state, the schedule and "
            f"the data cursor of the checkpoint belong to what those are. What may differ: {', '.join(MAY_DIFFER)}, "
            "without work.measure and batch.base. With a warm start a new job takes the checkpoint's weights alone."
        )
