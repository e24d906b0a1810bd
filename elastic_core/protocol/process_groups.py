"""What starts the processes of a segment, and what is said of them afterwards: launch orders, exits, reconciliation."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Annotated, Any

from elastic_core.domain import Allocation, ExactLoss, from_json, to_json
from elastic_core.domain.number_ranges import EXIT_CODE
from elastic_core.protocol.encoding import numbers
from elastic_core.protocol.records import JobFacts, RestorePoint
from elastic_core.spec import JobSpec
from elastic_core.spec.bounds import MOST_CHARACTERS
from elastic_core.text import plural, shortened, storable

CODE = "code"  # under which a job's results hold a `PinnedCode`
FORK = "forked_from"  # and a `ForkPoint`
EVALUATION = "evaluation"  # and metrics on held-out data, of the model that it ended with
MOST_ERROR, MOST_LOG_TAIL = 4000, 16_384  # characters of an exit report


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchOrder:
    """All that a launcher and its workers need to run a segment. Holds secrets: `token` in 0600 files only, and
    `agent_token` in no file at all."""

    segment_id: str
    job_id: str
    index: int
    lineage: int
    epoch: int
    origin_epoch: int  # epoch of the first lease of this chain of processes; names the process group
    attempt: int
    spec: JobSpec
    facts: JobFacts
    allocation: Allocation
    total_samples: int
    restore: RestorePoint
    warm_start: str | None  # uri of a checkpoint whose weights a new job starts from
    segment_seconds: float | None
    segment_steps: int | None
    token: str
    lease_seconds: float
    heartbeat_seconds: float
    grant_reason: str = ""
    warm_start_sha256: str | None = None  # of that checkpoint's manifest, where the ledger has committed it
    exact_loss: ExactLoss = field(default_factory=ExactLoss)  # of a job whose exchange is not exact
    agent_token: str = ""  # for the agent alone; "" in what workers get
    code: str = ""  # SHA-256 of the job's pinned code; "" where it runs as each node has it


def without_agent_token(order: LaunchOrder) -> LaunchOrder:
    """What workers may see of it."""
    return replace(order, agent_token="")


@dataclass(frozen=True, slots=True, kw_only=True)
class PinnedCode:
    """Which code every segment of the job runs; `unpinned` says why none is pinned."""

    sha256: str = ""
    packages: tuple[str, ...] = ()
    files: int = 0
    size_bytes: int = 0
    unpinned: str = ""

    def to_plain(self) -> dict[str, Any]:
        plain: dict[str, Any] = to_json(self)
        return {name: value for name, value in plain.items() if value}

    @property
    def words(self) -> str:
        if not self.sha256:
            return f"not pinned: {self.unpinned}" if self.unpinned else ""
        size = f"{self.size_bytes / 2**20:.1f} MiB"
        return f"{', '.join(self.packages)} ({plural(self.files, 'file')}, {size}), pinned as {self.sha256[:12]}"


def code_of(results: Mapping[str, Any]) -> PinnedCode:
    """Of a job's results; empty for one whose code was never pinned."""
    return from_json(PinnedCode, results.get(CODE) or {})


def held_out(results: Mapping[str, Any]) -> dict[str, float]:
    """What the job of these results was measured at on held-out data when it had finished; {} before that."""
    return numbers(results.get(EVALUATION, {}))


@dataclass(frozen=True, slots=True, kw_only=True)
class ForkPoint:
    """The checkpoint of another job that a job's training goes on from. `samples` is the cursor, as there."""

    job_id: str
    checkpoint_id: int
    step: int
    samples: int
    uri: str
    manifest_sha256: str

    @property
    def words(self) -> str:
        return f"checkpoint {self.checkpoint_id} of job {self.job_id} (step {self.step}, {self.samples} samples)"


def fork_of(results: Mapping[str, Any]) -> ForkPoint | None:
    """Of a job's results; None for one that began by itself."""
    return from_json(ForkPoint, results[FORK]) if FORK in results else None


class ExitKind(StrEnum):
    """What the end of a process group means."""

    BOUNDARY = "boundary"  # every rank ended well, with a commit behind it
    FINISHED = "finished"  # the same, and the job has all its samples
    USER_ERROR = "user_error"
    INFRASTRUCTURE = "infrastructure"
    STOPPED = "stopped"  # ended without a commit because it was told to
    DIVERGED = "diverged"  # the same because training diverged under an exchange that is not exact


@dataclass(frozen=True, slots=True, kw_only=True)
class ExitReport:
    """What became of a process group, from the agent that watched it (or from whoever found it gone).

    Users' programs write its texts. What no database stores is replaced in them, and what is too long is cut: the
    report must get through.
    """

    kind: ExitKind
    error: str = ""  # last line of the traceback, or the signal
    log_tail: str = ""
    # By rank, negative for a signal; workers that had left before are not among them.
    exit_codes: tuple[Annotated[int, EXIT_CODE], ...] = ()

    def __post_init__(self) -> None:
        error, log_tail = storable(self.error), storable(self.log_tail)
        if (over := len(error) - MOST_ERROR) > 0:
            error = f"{error[:MOST_ERROR]}... (and {over} more characters)"
        object.__setattr__(self, "error", error)
        object.__setattr__(self, "log_tail", log_tail[-MOST_LOG_TAIL:])


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessGroup:
    """A live or dead process group as its host sees it; sent to `reconcile`.

    A group's processes write its `segment_id`, as the texts of an `ExitReport`: the list of groups must get through.
    """

    origin_epoch: int
    segment_id: str
    alive: bool

    def __post_init__(self) -> None:
        object.__setattr__(self, "segment_id", shortened(storable(self.segment_id), MOST_CHARACTERS))


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredCheckpoint:
    """What of a `CheckpointRecord` says where its files are. Of all jobs they are asked for each minute."""

    checkpoint_id: int
    job_id: str
    step: int
    uri: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ReconcileAnswer:
    stop: tuple[int, ...]  # origin epochs of process groups that nobody owns: stop them
    actions: tuple[str, ...]  # what was put right, in words
    active_segments: tuple[str, ...]  # segments that should have an Airflow run
    active_jobs: tuple[str, ...]
    removable_checkpoints: tuple[StoredCheckpoint, ...] = ()
    ended_lately: tuple[str, ...] = ()  # jobs whose litter is looked for this time
