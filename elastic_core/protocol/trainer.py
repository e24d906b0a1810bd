"""What the processes of a segment and the control plane say to each other: `TrainerControl` and its messages.

Implemented in process (`control.plane`) and over HTTP (`protocol.http_client`); one contract suite runs over both.
Every method is idempotent, so a caller that got no answer may ask again. Errors are those of
`elastic_core.errors`. A trainer is bound to one token: one segment, one epoch. A job's own code can send what it likes
with that token, and all of it is stored: `check_commit` and `check_observations` say how much it may be, the types of
the fields how large each number (`control.number_checks`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Annotated, Any, Protocol

from elastic_core.domain import (
    ExchangeNeeds,
    Layout,
    Observation,
    Slot,
)
from elastic_core.domain.exchange_costs import AMONG
from elastic_core.domain.number_ranges import COUNT, GAIN, INSTANT, OF_THE_MODEL, TIMING
from elastic_core.errors import UserError
from elastic_core.protocol.encoding import encode
from elastic_core.protocol.process_groups import ExitReport, LaunchOrder
from elastic_core.spec.bounds import MOST_CHARACTERS, MOST_LISTED, MOST_SLOTS

SENT_AT_HEADER = "x-elastic-sent-at"  # Unix time by the trainer's clock, of each attempt to send a request
CLOCKS_AGREE_SECONDS = 5.0  # apart: how long a request was under way is not known
MOST_NOTES, NOTE_CHARACTERS = 20, 2_000  # of one commit, and of each note
MOST_FIGURES = 1_000  # metrics, or timings
MOST_FIGURE_BYTES = 128 * 2**10  # as JSON: of a commit's metrics and timings together
MOST_COSTS = 32  # exchanges that a job tells the costs of: decisions are given them
MOST_FINGERPRINT_BYTES = 8 * 2**20  # as JSON: of 1,000 ranks that each name an object a pass (audit: full), 40 passes
MOST_URI = 1_024  # characters
MOST_OBSERVATIONS = 1_000  # of one call
MOST_OBSERVED = 20_000  # in them: metrics, stages and exchanges
MOST_ENTRIES = {"observations": MOST_OBSERVATIONS, "slots": MOST_SLOTS}  # of an argument, before each is looked at
MOST_VALUES = 200_000  # of one message as JSON, whatever its method: more than any of these bounds lets through


class Directive(StrEnum):
    GO_ON = "go_on"
    BOUNDARY = "boundary"  # reach a boundary: commit and stop
    STOP = "stop"  # the job was cancelled: stop without a commit
    FENCED = "fenced"  # the lease is over: stop at once, commit nothing


@dataclass(frozen=True, slots=True, kw_only=True)
class Heartbeat:
    step: int
    samples: int
    at: Annotated[float, INSTANT]
    host: str = ""
    pids: tuple[int, ...] = ()
    # Work done in samples at the base batch, where that is the job's measure.
    progress: Annotated[float, COUNT] | None = None
    gain: Annotated[float, GAIN] | None = None  # then: base-batch steps that the last step counted for


@dataclass(frozen=True, slots=True, kw_only=True)
class HeartbeatAnswer:
    directive: Directive
    reason: str = ""
    lease_seconds: float = 0.0  # the lease is renewed for this long from the moment the request was sent
    token: str | None = None  # replaces the caller's token, when it nears its end
    slots: tuple[Slot, ...] = ()  # with BOUNDARY: on which the same processes could go on after it, by rank
    heartbeat_seconds: float | None = None  # until the next, and between reports; None: as the launch order has it
    steady: bool = False  # as the targets and the workers are now, the lease will pass on to the next segment as it is


@dataclass(frozen=True, slots=True, kw_only=True)
class Commit:
    """Makes a written and verified checkpoint visible. `final` ends the segment; `finished` ends the job."""

    step: int
    samples: int
    uri: str
    manifest_sha256: str
    size_bytes: int
    layout: Layout
    metrics: Mapping[str, Annotated[float, OF_THE_MODEL]]
    final: bool
    finished: bool = False
    draining: bool = False  # the processes end after this final commit, come what may: the lease must not pass on
    ready: tuple[Slot, ...] | None = None  # not held, and a worker waits for each; None: never resize these processes
    fingerprints: Mapping[str, Any] = field(default_factory=dict)  # what was read: see train.audit
    # Seconds: save, ...; `..._at`: Unix time; `..._bytes`
    timings: Mapping[str, Annotated[float, TIMING]] = field(default_factory=dict)
    progress: Annotated[float, COUNT] | None = None  # as in `Heartbeat`
    gain: Annotated[float, GAIN] | None = None
    notes: tuple[str, ...] = ()  # what the job's user should know; the same words again say nothing new

    def timed_by(self, now: float, sent_at: float) -> Commit:
        """With its times by the reader's clock (`now`), if the trainer's (`sent_at`) was set or is another machine's:
        what a restart takes is told by one of them at its beginning and by the other at its end."""
        apart = now - sent_at
        if abs(apart) <= CLOCKS_AGREE_SECONDS:
            return self
        timings = {name: value + apart if name.endswith("_at") else value for name, value in self.timings.items()}
        return replace(self, timings=timings)


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitAnswer:
    """`order` is set when the lease passes on: go on with the next segment in the same processes.

    Its slots may be others than before: rank 0's is the same, and a process whose slot is not among them ends.
    """

    checkpoint_id: int
    directive: Directive  # GO_ON with an order or after an interval commit, else BOUNDARY: stop
    reason: str
    order: LaunchOrder | None = None


def check_commit(commit: Commit) -> int:
    """Raises `UserError` for texts and maps that are larger than any job needs. Gives its bytes, but
    for what every commit has."""
    _check_text("uri", commit.uri, MOST_URI)
    _check_text("manifest_sha256", commit.manifest_sha256)
    check_count("notes", len(commit.notes), MOST_NOTES)
    for note in commit.notes:
        _check_text("a note", note, NOTE_CHARACTERS)
    check_figures("metrics", commit.metrics)
    check_figures("timings", commit.timings)
    for name, value in commit.timings.items():
        if name.endswith("_at") and not INSTANT.holds(value):
            raise UserError(
                f"the timing {name!r} is {value}; allowed are Unix seconds from {INSTANT.least:g} to {INSTANT.most:g}"
            )
    figures = len(encode(commit.metrics)) + len(encode(commit.timings))
    if figures > MOST_FIGURE_BYTES:
        raise UserError(
            f"metrics and timings have {figures} bytes as JSON; allowed are {MOST_FIGURE_BYTES} a commit: give fewer, "
            "or shorter names"
        )
    fingerprints = len(encode(commit.fingerprints))
    if fingerprints > MOST_FINGERPRINT_BYTES:
        raise UserError(
            f"the fingerprints of the samples read have {fingerprints} bytes as JSON; allowed are "
            f"{MOST_FINGERPRINT_BYTES} a commit: take checkpoints more often"
        )
    return figures + fingerprints + len(encode(commit.notes))


def check_observations(observations: Sequence[Observation]) -> int:
    """As `check_commit`, of each of them, and how much they are together. Gives the bytes of all."""
    check_count("observations", len(observations), MOST_OBSERVATIONS)
    check_count("what was observed", sum(map(figures_in, observations)), MOST_OBSERVED)
    for one in observations:
        _check_text("type", one.type)
        _check_text("comm", one.comm)
        check_figures("metrics", one.metrics)
        check_count("stages", len(one.stages), MOST_SLOTS)
        check_count("exchanges", len(one.exchanges), MOST_LISTED)
        for figures in one.exchanges:
            _check_text("algorithm", figures.algorithm)
        if one.exchange_needs is not None:
            _check_needs(one.exchange_needs)
    return len(encode(observations))


def _check_needs(needs: ExchangeNeeds) -> None:
    _check_text("type of exchange_needs", needs.type)
    check_count("costs of exchange_needs", len(needs.costs), MOST_COSTS)
    for cost in needs.costs:
        _check_text("algorithm", cost.algorithm)
        if not len(cost.sent_bytes) == len(cost.rounds) == len(AMONG):
            raise UserError(
                f"costs of {cost.algorithm!r} name {len(cost.sent_bytes)} numbers of bytes and {len(cost.rounds)} of "
                f"rounds; allowed are {len(AMONG)} of each, for {', '.join(map(str, AMONG))} ranks"
            )


def figures_in(observation: Observation) -> int:
    """What of it may be many: see `MOST_OBSERVED`."""
    return len(observation.metrics) + len(observation.stages) + len(observation.exchanges)


def check_figures(name: str, figures: Mapping[str, float]) -> None:
    """Raises `UserError` for more of them, or longer names, than any job needs. `name`: what they are."""
    check_count(name, len(figures), MOST_FIGURES)
    for key in figures:
        _check_text(f"a name in {name}", key)


def check_count(name: str, count: int, most: int) -> None:
    """Raises `UserError` for more entries than are allowed."""
    if count > most:
        raise UserError(f"{name} has {count} entries; allowed are {most}: send fewer")


def _check_text(name: str, text: str, most: int = MOST_CHARACTERS) -> None:
    if len(text) > most:
        raise UserError(f"{name} has {len(text)} characters ({text[:40]!r}...); allowed are {most}: shorten it")


class TrainerControl(Protocol):
    """For the processes of one segment; bound to their token."""

    def heartbeat(self, beat: Heartbeat) -> HeartbeatAnswer: ...
    def observe(self, observations: Sequence[Observation]) -> None: ...
    def commit(self, commit: Commit) -> CommitAnswer: ...
    def mark_bad(self, checkpoint_id: int, why: str) -> None:
        """Of a long reason the beginning is kept: a checkpoint that is corrupt has to be passed over."""

    def release_slots(self, slots: Sequence[Slot], epoch: int) -> None:
        """No process is left on these slots, which the lease of this epoch holds beside its allocation since it passed
        on: they are free. Only with the agent's token of the chain. Raises `Fenced` where that lease is over."""

    def exited(self, report: ExitReport) -> None:
        """The chain of processes of this token is gone: frees its slots. Only with the agent's token of the chain."""
