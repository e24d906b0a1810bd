"""Which sweep a job is a member of: kept in its spec, so with everything that keeps the spec, and sent with it."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field

from elastic_core.spec import bounds

MOST_MEMBERS = 256  # of a sweep
GROUP_ID = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,79}$"


class Group(BaseModel):
    """Written by the sweep that makes the job (`spec.inputs.sweeps`). The values are where they count: in the spec."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    id: str = Field(pattern=GROUP_ID, description="of the sweep: letters, digits, '.', '_' and '-', at most 80")
    name: str = Field(
        max_length=bounds.MOST_CHARACTERS, description="the job's name before it got a suffix; that of its experiment"
    )
    index: int = Field(ge=0, lt=MOST_MEMBERS, description="which member of the sweep it is, from 0")
    swept: tuple[str, ...] = Field(
        max_length=bounds.MOST_LISTED, description="fields of the spec that the sweep has set, such as batch.max"
    )
