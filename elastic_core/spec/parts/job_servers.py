"""How a job's slots work together: replicas that sum gradients among themselves, or workers with parameter servers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from elastic_core.domain import EXACT, Layout
from elastic_core.spec.parts.job_comm import Comm
from elastic_core.spec.parts.job_slots import Layouts, Slots
from elastic_core.spec.parts.job_work import Batch, Work

Sync = Literal["allreduce", "parameter_server", "either"]
MOST_SERVERS = 32  # each number of them is a layout of its own


class Servers(BaseModel):
    """How many of a job's slots may be parameter servers. `max` follows `min` where it is less."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    min: int = Field(
        default=1,
        ge=1,
        le=MOST_SERVERS,
        title="Fewest servers",
        description="parameter servers that the job has at least, where it has any; each takes a slot",
    )
    max: int = Field(
        default=4, ge=1, le=MOST_SERVERS, title="Most servers", description="parameter servers that it has at most"
    )

    @model_validator(mode="before")
    @classmethod
    def _fill_range(cls, data: object) -> object:
        if isinstance(data, dict) and isinstance(data.get("min"), int) and "max" not in data:
            return {**data, "max": max(data["min"], 4)}
        return data

    @model_validator(mode="after")
    def _is_a_range(self) -> Self:
        if self.min > self.max:
            raise ValueError(f"min {self.min} is over max {self.max}; min must be at most max")
        return self


def cuts_of(sync: Sync, servers: Servers, cuts: tuple[Layout, ...]) -> tuple[Layout, ...]:
    """As `Limits.cuts`, the simplest first; `cuts` are those of replicas."""
    served = tuple(Layout(servers=count) for count in range(servers.min, servers.max + 1))
    return {"allreduce": cuts, "parameter_server": served, "either": cuts + served}[sync]


def what_fills(cuts: tuple[Layout, ...]) -> str:
    """Which counts of slots there are layouts for, in words."""
    if cuts[0].servers:
        return f"a worker, and {cuts[0].servers} parameter servers or more, take {cuts[0].servers + 1} slots at least"
    units = sorted({cut.model_size for cut in cuts})
    return f"layouts give multiples of {', '.join(map(str, units))} (tensor x pipeline)"


def problems_of_servers(
    sync: Sync, servers: Servers, slots: Slots, layouts: Layouts, comm: Comm, placement: str, work: Work, batch: Batch
) -> Iterator[str]:
    """What workers with parameter servers cannot do, and what is given in vain."""
    if sync == "allreduce":
        if servers != Servers():
            yield (
                "servers are given, and sync is 'allreduce', so that there are none; set sync: parameter_server or "
                "either, or leave servers out"
            )
        return
    whole = "is for replicas that exchange gradients among themselves"
    wrong = [
        (layouts != Layouts(), "layouts cut the model, and a worker has all of it", "leave them out"),
        (comm.algorithm != EXACT, f"comm.algorithm {comm.algorithm!r} {whole}", f"set it to {EXACT}"),
        (comm.hierarchical, f"comm.hierarchical {whole}", "leave it out"),
        (placement != "none", f"placement {placement!r} has the layers on several types", "set it to none"),
        (work.scale_invariant, "work.measure 'progress' needs the noise of one worker too", "set it to samples"),
        (batch.learning_rate_rule == "adascale", "batch.learning_rate_rule 'adascale' needs the same",
         "take linear, sqrt or none"),
    ]  # fmt: skip
    found = [f"{what}; {instead}" for is_wrong, what, instead in wrong if is_wrong]
    if found:
        yield f"sync is {sync!r}, and {'; and '.join(found)}"
    most, least = slots.counts()[-1], servers.min + 1
    if sync == "parameter_server" and most < least:
        yield (
            f"sync is 'parameter_server', which takes a slot for a worker and {servers.min} for servers, and slots may "
            f"be {most} at most; give slots.max of at least {least}, or fewer servers"
        )
