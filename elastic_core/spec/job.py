"""The job spec: all that a user may ask of the platform for one training job.

Units: slots are accelerators, batches and work are samples, times are seconds. Its JSON schema feeds
Airflow's trigger form (`spec.form`). What contradicts itself is refused here; what a given cluster cannot do,
in `spec.pool_check`.
"""

from __future__ import annotations

from datetime import UTC, datetime
from fractions import Fraction
from math import ceil
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, WithJsonSchema, field_validator, model_validator
from pydantic.json_schema import SkipJsonSchema

from elastic_core.domain import AUTO, EXACT, Layout, Limits
from elastic_core.errors import UserError
from elastic_core.spec import bounds
from elastic_core.spec.cluster import QUEUE_NAME
from elastic_core.spec.layer_profiles import ModelProfile
from elastic_core.spec.parts.exchange_checks import check_layouts, check_noise
from elastic_core.spec.parts.job_comm import Comm
from elastic_core.spec.parts.job_group import Group
from elastic_core.spec.parts.job_slots import (
    Layouts,
    Servers,
    Slots,
    Sync,
    _list_counts,
    cuts_of,
    filled_by,
    server_problems,
)
from elastic_core.spec.parts.job_work import Batch, SegmentLength, Work
from elastic_core.spec.problems import parse, refuse

# In the schema an object like any other: a form has one field for all of it.
PlacedModel = Annotated[ModelProfile, WithJsonSchema({"type": "object"})]
FIRST_YEAR, LAST_YEAR = 2000, 2999  # of a deadline


class Checkpoints(BaseModel):
    """Checkpoints inside a segment, and which are kept; a segment always ends with one."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    interval_seconds: float | None = Field(
        le=bounds.MOST_SECONDS,
        default=120.0,
        gt=0,
        allow_inf_nan=False,
        title="Every so many seconds",
        description="seconds between checkpoints inside a segment; null for none",
    )
    interval_steps: int | None = Field(
        default=None,
        ge=1,
        le=bounds.MOST_SAMPLES,
        title="Every so many steps",
        description="the same in optimizer steps; null for none",
    )
    keep_last: int = Field(
        default=3, ge=1, le=bounds.MOST_KEPT, title="Newest kept", description="newest checkpoints that are kept"
    )
    keep_best: int = Field(
        default=1,
        ge=0,
        le=bounds.MOST_KEPT,
        title="Best kept",
        description="best checkpoints, by the task's metric, that are kept besides",
    )
    memory_copies: int = Field(
        default=1,
        ge=0,
        le=8,
        title="Copies in memory",
        description="other nodes that keep the latest checkpoint in memory besides its writers' own, if there are so "
        "many: a lost node does not make the job read from the store then",
    )


class JobSpec(BaseModel):
    """One training job."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str = Field(
        pattern=r"^[a-z0-9][a-z0-9-]{0,47}$",
        title="Name",
        description="lower-case letters, digits and '-', at most 48 characters",
        examples=["digits-cnn"],
    )
    entry_point: str = Field(
        max_length=bounds.MOST_CHARACTERS,
        pattern=r"^[A-Za-z_][\w.]*:[A-Za-z_]\w*$",
        title="Entry point",
        description="module:Class or module:function, from the operator's allow-list",
        examples=["examples.digits:DigitsCNN"],
    )
    params: dict[str, Any] = Field(
        default_factory=dict,
        title="Task parameters",
        description="parameters of the task's own code",
        examples=[{"learning_rate": 0.05}],
    )
    work: Work
    batch: Batch
    slots: Slots = Slots()
    layouts: Layouts = Layouts()
    sync: Sync = Field(
        default="allreduce",
        title="Synchronisation",
        description="allreduce: slots sum gradients among themselves; parameter_server: some of the slots keep and "
        "step the parameters for the others, the workers; either: the platform chooses by what it measures",
    )
    servers: Servers = Servers()
    comm: Comm = Comm()
    placement: Literal["none", "auto", "exact", "rl_lstm"] = Field(
        default="none",
        title="Placement",
        description="whether the job may hold slots of several types at once, each training some of the model's "
        "layers, and who plans it: exact proves the cheapest plan, rl_lstm learns one, auto is exact",
    )
    placement_floor: float | None = Field(
        default=None,
        gt=0,
        le=bounds.MOST_SAMPLES,
        allow_inf_nan=False,
        title="Floor of throughput",
        description="samples a second that a placed job wants at least; the cheapest plan that reaches it is taken",
        examples=[20000],
    )
    placement_profile: PlacedModel | None = Field(
        default=None,
        title="Layers by type",
        description="times of the model's layers by resource type, as examples/placement/ctr.json has them; left out: "
        "timed on a processor when the job is submitted",
    )
    segment: SegmentLength = SegmentLength()
    checkpoints: Checkpoints = Checkpoints()
    priority: int = Field(
        default=0,
        ge=bounds.LOWEST_PRIORITY,
        le=bounds.HIGHEST_PRIORITY,
        title="Priority",
        description="higher goes first: under horizon lower ones make room for its start, under other policies a point "
        "counts as having been submitted a minute earlier",
    )
    queue: str = Field(
        default="default",
        pattern=QUEUE_NAME,
        title="Queue",
        description="one of the cluster's queues, whose guaranteed share the job uses; 'default' has none: lower-case "
        "letters, digits, '_' and '-', at most 32 characters",
    )
    deadline: datetime | None = Field(
        default=None,
        title="Deadline",
        description="when the job should be done, e.g. 2030-01-31T18:00:00+01:00; without an offset it is UTC",
    )
    prefer: Literal["time", "cost"] = Field(
        default="time",
        title="Prefer",
        description="cost: the slots that cost least for the work, among those that meet the deadline if there is one; "
        "by the nodes' prices, under horizon",
    )
    budget: float | None = Field(
        default=None,
        gt=0,
        le=bounds.MOST_SAMPLES,
        allow_inf_nan=False,
        title="Budget",
        description="most that the job may spend in all, in the currency of the nodes' prices: slots on which it is "
        "expected to spend more are not taken, unless all are; under horizon",
        examples=[25.0],
    )
    seed: int = Field(
        default=0, ge=0, lt=2**63, title="Seed", description="same seed, same data order and initial weights"
    )
    precision: Literal["fp32", "bf16"] = Field(
        default="fp32", title="Precision", description="arithmetic of the forward and backward pass"
    )
    audit: Literal["fingerprint", "full"] = Field(
        default="fingerprint",
        title="Audit",
        description="full: also keep every sample index read, to prove exactly-once",
    )
    registered_model: str | None = Field(
        default=None,
        max_length=bounds.MOST_CHARACTERS,
        title="Registered model",
        description="MLflow model name; the job's name if absent",
    )
    group: SkipJsonSchema[Group | None] = Field(  # nothing that a form could ask for: a sweep writes it
        default=None, title="Group", description="the sweep that the job is a member of; written by it"
    )

    @field_validator("params")
    @classmethod
    def _numbers_of_json(cls, params: dict[str, Any]) -> dict[str, Any]:
        problem = bounds.problem_of_numbers(params)
        if problem is not None:
            raise ValueError(problem)
        return params

    @field_validator("deadline")
    @classmethod
    def _with_offset(cls, deadline: datetime | None) -> datetime | None:
        if deadline is None:
            return None
        if not FIRST_YEAR <= deadline.year <= LAST_YEAR:
            raise ValueError(f"the year is {deadline.year}; possible are {FIRST_YEAR} to {LAST_YEAR}")
        return deadline.replace(tzinfo=UTC) if deadline.tzinfo is None else deadline

    @model_validator(mode="after")
    def _batch_reaches_every_count(self) -> Self:
        most = self.slots.counts()[-1]
        if most > self.batch.max:
            raise ValueError(
                f"slots may be up to {most}, and batch.max {self.batch.max} is less than one sample for each; "
                f"possible are slots of at most {self.batch.max}, or a batch.max of at least {most}"
            )
        return self

    @model_validator(mode="after")
    def _layouts_fill_slots(self) -> Self:
        for problem in server_problems(
            self.sync, self.servers, self.slots, self.layouts, self.comm, self.placement, self.work, self.batch
        ):
            raise ValueError(problem)
        counts, admitted, possible = self.slots.counts(), self._counts(), filled_by(self._cuts())
        if not admitted:
            raise ValueError(f"slots may be {_list_counts(counts)}, but no such count is possible: {possible}")
        if self.slots.requested is not None and self.slots.requested not in admitted:
            raise ValueError(f"slots.requested {self.slots.requested} is not possible: {possible}")
        if self.slots.allowed is not None and admitted != counts:
            raise ValueError(f"slots.allowed {sorted(set(counts) - set(admitted))} are not possible: {possible}")
        return self

    @model_validator(mode="after")
    def _work_is_measured_on_whole_models(self) -> Self:
        if self.layouts == Layouts():
            return self
        why = "is measured on parts of the global batch, each of which one slot computes with the whole model"
        if self.work.scale_invariant:
            raise ValueError(
                f"work.measure is 'progress', which {why}, and layouts may cut the model; possible are layouts left "
                "out, or measure: samples"
            )
        if self.work.patience is not None:
            raise ValueError(
                f"work.patience is {self.work.patience}, which evaluates the whole model in the middle of training, "
                "and layouts may cut it; possible are layouts left out, or a target_loss instead of patience"
            )
        return self

    @model_validator(mode="after")
    def _exchanges_are_possible(self) -> Self:
        check_layouts(self.comm, self.layouts)
        if self.comm.exchanged:
            check_noise(self.comm, self.batch.learning_rate_rule, self.work.scale_invariant)
        return self

    @model_validator(mode="after")
    def _placement_is_of_whole_chains(self) -> Self:
        """What stages on several types cannot do, and what is given in vain."""
        if not self.places_layers:
            for name, value in (("floor", self.placement_floor), ("profile", self.placement_profile)):
                if value is not None:
                    raise ValueError(
                        f"placement_{name} is given, and placement is 'none', so that nothing reads it; set placement: "
                        f"auto, or leave placement_{name} out"
                    )
            return self
        whole = "is for replicas of the whole model"
        wrong = [
            (self.layouts != Layouts(), "layouts cut the model over slots of one type", "leave them out"),
            (self.comm.algorithm != EXACT, f"comm.algorithm {self.comm.algorithm!r} {whole}", f"set it to {EXACT}"),
            (self.work.scale_invariant, f"work.measure 'progress' {whole}", "set it to samples"),
            (self.batch.learning_rate_rule == "adascale", f"batch.learning_rate_rule 'adascale' {whole}",
             "take linear, sqrt or none"),
            (self.work.patience is not None, "work.patience evaluates the whole model in the middle of training",
             "leave it out, or give a target_loss"),
        ]  # fmt: skip
        problems = [f"{what}; {instead}" for is_wrong, what, instead in wrong if is_wrong]
        if problems:
            raise ValueError(f"placement is {self.placement!r}, and {'; and '.join(problems)}")
        return self

    @property
    def places_layers(self) -> bool:
        """Whether the job may hold slots of several types at once."""
        return self.placement != "none"

    def _cuts(self) -> tuple[Layout, ...]:
        return cuts_of(self.sync, self.servers, self.layouts.cuts())

    def _counts(self) -> tuple[int, ...]:
        """The counts that some layout fills."""
        cuts = self._cuts()
        return tuple(count for count in self.slots.counts() if any(cut.on(count) is not None for cut in cuts))

    def limits(self) -> Limits:
        counts = self._counts()
        return Limits(
            slot_counts=counts,
            cuts=self._cuts() if self._cuts() != (Layout(),) else (),
            types=self.slots.types,
            min_batch=self.batch.min,
            max_batch=self.batch.max,
            max_local_batch=self.batch.max_per_slot,
            requested_slots=self.slots.requested or counts[-1],
            requested_batch=self.batch.base or self.batch.min,
            base_batch=self.batch.base or self.batch.min,
            min_efficiency=self.batch.min_efficiency,
            comm=self.comm.asked,
            comm_options=self.comm.options_of(self.comm.asked),
            comm_allow=(self.comm.allow or "") if self.comm.asked == AUTO else "",
        )


def parse_job_spec(data: Any) -> JobSpec:
    """A job spec from plain JSON values. Raises `UserError` that lists every problem."""
    problem = bounds.problem_of(data)
    if problem is not None:
        raise refuse("job spec", [problem])
    return parse(JobSpec, data, "job spec")


def total_samples(spec: JobSpec, dataset_samples: int) -> int:
    """The whole work in samples, by its own measure: as many as asked for, or epochs x the data set, rounded up.

    The product is of the decimal number that the user wrote: 1.1 epochs of 10 samples are 11, not 12. Raises
    `UserError` where it is more than a job may have.
    """
    if spec.work.samples is not None:
        return spec.work.samples
    total = ceil(Fraction(str(spec.work.epochs)) * dataset_samples)
    if total > bounds.MOST_SAMPLES:
        raise UserError(
            f"work.epochs: {spec.work.epochs:g} passes over {dataset_samples} samples are {total} samples; allowed are "
            f"{bounds.MOST_SAMPLES} in all"
        )
    return total


def most_samples(spec: JobSpec, total: int) -> int:
    """Samples that a job of `total` samples of work reads at most.

    A step of progress at batch B counts for at least min(B, base) samples, so that even without any gain a job reads
    no more than its work by the largest batch over the base, and a last step.
    """
    if not spec.work.scale_invariant:
        return total
    if spec.work.max_samples is not None:
        return spec.work.max_samples
    return -(-total * spec.batch.max // (spec.batch.base or spec.batch.min)) + spec.batch.max
