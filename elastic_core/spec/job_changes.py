"""What a job's user may set after it was submitted, in place of what its spec says.

The spec itself stays as it was given: whoever submits it again under the job's id asks for the same job.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from elastic_core.domain import to_json
from elastic_core.errors import UserError
from elastic_core.spec.job import JobSpec, parse_job_spec


@dataclass(frozen=True, slots=True, kw_only=True)
class JobChanges:
    """None: as the spec says."""

    priority: int | None = None
    min_slots: int | None = None
    max_slots: int | None = None

    def given(self) -> dict[str, int]:
        """Those that are set, by name."""
        values = {"priority": self.priority, "min_slots": self.min_slots, "max_slots": self.max_slots}
        return {name: value for name, value in values.items() if value is not None}

    @property
    def words(self) -> str:
        """E.g. "priority 5, max slots 2"; empty where nothing is set."""
        return ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in self.given().items())

    def after(self, earlier: JobChanges) -> JobChanges:
        """These, and what was set earlier and is not set by these."""
        return JobChanges(**{**earlier.given(), **self.given()})

    def applied(self, spec: JobSpec) -> JobSpec:
        """The spec with what is set. Raises `UserError` where the two contradict each other."""
        if not self.given():
            return spec
        changed: dict[str, Any] = to_json(spec)
        if self.priority is not None:
            changed["priority"] = self.priority
        if self.min_slots is not None or self.max_slots is not None:
            changed["slots"] = self._slots(spec)
        return parse_job_spec(changed)

    def _slots(self, spec: JobSpec) -> dict[str, Any]:
        slots = spec.slots
        fewest = slots.min if self.min_slots is None else self.min_slots
        most = slots.max if self.max_slots is None else self.max_slots
        allowed = [count for count in slots.allowed or () if fewest <= count <= most]
        if slots.allowed and not allowed:
            raise UserError(
                f"slots: none of the counts that the job's spec allows ({', '.join(map(str, slots.allowed))}) is among "
                f"{fewest} to {most}; choose min and max around one of them"
            )
        changed: dict[str, Any] = {**to_json(slots), "min": fewest, "max": most, "allowed": allowed or None}
        if slots.requested is not None and slots.requested not in (allowed or range(fewest, most + 1)):
            changed["requested"] = None
        return changed


AS_SUBMITTED = JobChanges()
