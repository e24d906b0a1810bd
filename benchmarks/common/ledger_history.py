"""The ledger's invariants, checked from its history: each look is compared with the one before it.

Reads the tables past all of the platform's code, so that code that breaks a promise cannot hide it. Of the nine
invariants (docs/design/invariants.md) it judges what tables alone show: 1 to 5, and of 7 the shape of active jobs;
beside them, what is promised to who pauses or stops a job, or sets a node aside. Who else knows something, e.g. which
processes are alive, compares it with `Picture`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import Engine, text

from elastic_core.state.order.sample_order import batch_indices
from elastic_core.train.data.audit import fingerprint

OPEN = ("created", "waiting", "granted", "running")
Row = Mapping[str, Any]

PREPARE = text("""
PREPARE elastic_look AS SELECT json_build_object(
    'jobs', (SELECT json_agg(json_build_object('id', id, 'state', state, 'lineage', lineage, 'head', head_id,
        'paused', paused, 'error', error, 'total', total_samples,
        'seed', (spec ->> 'seed')::int, 'samples', (facts ->> 'dataset_samples')::int)
        ORDER BY id) FROM jobs),
    'segments', (SELECT json_agg(json_build_object('id', id, 'job', job_id, 'index', index, 'state', state, 'epoch',
        epoch, 'end', end_checkpoint_id, 'follows', follows) ORDER BY job_id, index) FROM segments),
    'leases', (SELECT json_agg(json_build_object('epoch', epoch, 'origin', origin_epoch, 'job', job_id, 'segment',
        segment_id, 'expires', expires_at, 'fenced', fenced_at, 'released', released_at, 'why',
        coalesce(release_reason, fence_reason), 'slots', allocation -> 'slots') ORDER BY epoch) FROM leases),
    'held', (SELECT json_agg(json_build_object('epoch', epoch, 'slot', slot) ORDER BY slot, epoch)
        FROM lease_slots WHERE released_at IS NULL),
    'checkpoints', (SELECT json_agg(json_build_object('id', id, 'job', job_id, 'lineage', lineage, 'step', step,
        'samples', samples, 'epoch', epoch, 'segment', segment_id, 'previous', previous_id, 'uri', uri, 'sha',
        manifest_sha256, 'final', final, 'bad', bad, 'swept', swept_at, 'reads', fingerprints) ORDER BY id)
        FROM checkpoints),
    'beats', (SELECT json_object_agg(epoch, step) FROM heartbeats),
    'observed', (SELECT json_object_agg(epoch, n)
        FROM (SELECT epoch, count(*) AS n FROM observations GROUP BY epoch) AS counted),
    'absent', (SELECT json_agg(s.id) FROM slots s JOIN nodes n ON n.name = s.node
        WHERE NOT n.present OR s.index >= n.num_slots),
    'aside', (SELECT json_object_agg(name, json_build_object('since', set_aside_at, 'goes', leaves_at)) FROM nodes
        WHERE set_aside_at IS NOT NULL),
    'version', (SELECT version FROM scheduling), 'decided', (SELECT decided_version FROM scheduling),
    'decisions', (SELECT max(id) FROM decisions)
)
""")
LOOK = text("EXECUTE elastic_look")


@dataclass(frozen=True, slots=True)
class Picture:
    """The ledger at one moment."""

    jobs: Mapping[str, Row]
    segments: Mapping[str, Row]
    leases: Mapping[int, Row]
    held: tuple[Row, ...]
    checkpoints: Mapping[int, Row]
    beats: Mapping[int, int]
    observed: Mapping[int, int]
    absent: frozenset[str]
    aside: Mapping[str, Row]  # nodes that are set aside -> since when, and when they go, where that is known
    version: int
    decided: int
    last_decision: int

    def live(self) -> list[Row]:
        """Leases that hold slots."""
        return [lease for lease in self.leases.values() if lease["released"] is None]


@dataclass(frozen=True, slots=True)
class Violation:
    invariant: int | None  # None: of a promise beside them
    what: str

    def __str__(self) -> str:
        return f"promise: {self.what}" if self.invariant is None else f"invariant {self.invariant}: {self.what}"


def look(engine: Engine) -> Picture:
    with engine.connect() as connection:
        if "looks" not in connection.info:  # planning takes longer than looking
            connection.execute(PREPARE)
            connection.info["looks"] = True
        found = connection.execute(LOOK).scalar_one()
    return Picture(
        jobs={row["id"]: row for row in found["jobs"] or ()},
        segments={row["id"]: row for row in found["segments"] or ()},
        leases={row["epoch"]: row for row in found["leases"] or ()},
        held=tuple(found["held"] or ()),
        checkpoints={row["id"]: row for row in found["checkpoints"] or ()},
        beats={int(epoch): step for epoch, step in (found["beats"] or {}).items()},
        observed={int(epoch): n for epoch, n in (found["observed"] or {}).items()},
        absent=frozenset(found["absent"] or ()),
        aside=found["aside"] or {},
        version=found["version"],
        decided=found["decided"],
        last_decision=found["decisions"] or 0,
    )


@dataclass
class LedgerHistory:
    engine: Engine
    last: Picture | None = None
    _read_right: set[int] = field(default_factory=set)

    def check(self) -> list[Violation]:
        """What is wrong now, or came about since the last look in a way that it must not."""
        now = look(self.engine)
        before, self.last = self.last, now
        found = [*_slots(now), *_jobs(now), *self._data(now)]
        if before is not None:
            found += [*_writers(before, now), *_fences(before, now), *_progress(before, now)]
            found += [*_grants(before, now), *_stops(before, now)]
        return found

    def _data(self, now: Picture) -> Iterator[Violation]:
        """5: what each checkpoint has read is what lies between it and the one that its training went on from."""
        for number, row in now.checkpoints.items():
            if number in self._read_right:
                continue
            self._read_right.add(number)
            job = now.jobs[row["job"]]
            begin = now.checkpoints[row["previous"]]["samples"] if row["previous"] is not None else 0
            wanted = _reads(job["seed"], job["samples"], begin, row["samples"])
            got = [[reads["epoch"], reads["count"], reads["mix_sum"]] for reads in row["reads"].get("epochs", ())]
            if got != wanted:
                what = f"checkpoint {number} of {row['job']} at sample {row['samples']}, after one at {begin}"
                yield Violation(5, f"{what}, has read {got}, and not {wanted}")
            if row["samples"] > job["total"]:
                yield Violation(5, f"checkpoint {number} of {row['job']} has read more than {job['total']} samples")


def _reads(seed: int, dataset_samples: int, begin: int, end: int) -> list[list[Any]]:
    reads, at = [], begin
    while at < end:
        length = min(dataset_samples - at % dataset_samples, end - at)
        of_epoch = fingerprint(at // dataset_samples, batch_indices(seed, dataset_samples, at, length))
        reads.append([of_epoch.epoch, of_epoch.count, of_epoch.mix_sum])
        at += length
    return reads


def _slots(now: Picture) -> Iterator[Violation]:
    """1: a slot has one holder, and who may still write holds all that he was given."""
    holders: dict[str, int] = {}
    by_epoch: dict[int, set[str]] = {}
    for row in now.held:
        if row["slot"] in holders:
            yield Violation(1, f"slot {row['slot']} is held by epochs {holders[row['slot']]} and {row['epoch']}")
        holders[row["slot"]] = row["epoch"]
        by_epoch.setdefault(row["epoch"], set()).add(row["slot"])
        if now.leases[row["epoch"]]["released"] is not None:
            yield Violation(1, f"epoch {row['epoch']} is released, and holds {row['slot']}")
    unfenced: dict[str, int] = {}
    for lease in now.live():
        if lease["fenced"] is not None:
            continue
        wanted = {f"{slot['node']}:{slot['index']}" for slot in lease["slots"]}
        if missing := wanted - by_epoch.get(lease["epoch"], set()):
            yield Violation(1, f"epoch {lease['epoch']} is in force without its slots {sorted(missing)}")
        if now.jobs[lease["job"]]["state"] == "active" and now.segments[lease["segment"]]["state"] in OPEN:
            if lease["job"] in unfenced:
                yield Violation(2, f"epochs {unfenced[lease['job']]} and {lease['epoch']} both write {lease['job']}")
            unfenced[lease["job"]] = lease["epoch"]


def _jobs(now: Picture) -> Iterator[Violation]:
    """4 and 7: a job has one way on, and what is committed has its checkpoint and its successor."""
    open_segments: dict[str, list[str]] = {}
    last_index: dict[str, int] = {}
    for segment in now.segments.values():
        last_index[segment["job"]] = segment["index"]
        if segment["state"] in OPEN:
            open_segments.setdefault(segment["job"], []).append(segment["id"])
        lease = now.leases.get(segment["epoch"]) if segment["epoch"] is not None else None
        if segment["state"] in ("granted", "running") and (lease is None or lease["released"] is not None):
            yield Violation(7, f"{segment['id']} is {segment['state']} without a lease: nobody will go on with it")
        end = now.checkpoints.get(segment["end"]) if segment["end"] is not None else None
        if segment["state"] == "committed" and (end is None or not end["final"]):
            yield Violation(4, f"{segment['id']} is committed without a final checkpoint")
    for job in now.jobs.values():
        has = open_segments.get(job["id"], [])
        if (job["state"] == "active") != (len(has) == 1):
            yield Violation(7, f"{job['id']} is {job['state']}, and its open segments are {has}")
        head = now.checkpoints.get(job["head"]) if job["head"] is not None else None
        if job["state"] == "finished" and (head is None or head["samples"] != job["total"]):
            yield Violation(5, f"{job['id']} is finished at {head and head['samples']} of {job['total']} samples")
        if head is not None and (head["bad"] or head["swept"] is not None):
            yield Violation(4, f"the head of {job['id']}, checkpoint {head['id']}, is corrupt or swept")


def _writers(before: Picture, now: Picture) -> Iterator[Violation]:
    """2: what is new was written under an epoch that was in force."""
    for number in now.checkpoints.keys() - before.checkpoints.keys():
        row = now.checkpoints[number]
        lease, was = now.leases[row["epoch"]], before.leases.get(row["epoch"])
        if (lease["segment"], lease["job"]) != (row["segment"], row["job"]):
            yield Violation(2, f"checkpoint {number} of {row['segment']} is of epoch {row['epoch']}, another segment's")
        if was is not None and (was["fenced"] is not None or was["released"] is not None):
            yield Violation(2, f"checkpoint {number} was committed by epoch {row['epoch']}, which was over")
        if before.segments.get(row["segment"], {"state": "created"})["state"] not in OPEN:
            yield Violation(2, f"checkpoint {number} was committed to {row['segment']}, which was closed")
    for epoch, was in before.leases.items():
        over = was["fenced"] is not None or was["released"] is not None
        if over and now.observed.get(epoch, 0) != before.observed.get(epoch, 0):
            yield Violation(2, f"observations of epoch {epoch}, which was over")
        if over and now.leases[epoch]["expires"] != was["expires"]:
            yield Violation(2, f"the lease of epoch {epoch}, which was over, was renewed")
    for epoch, step in before.beats.items():
        if now.beats[epoch] < step:
            yield Violation(3, f"the heartbeats of epoch {epoch} went back from step {step} to {now.beats[epoch]}")


def _fences(before: Picture, now: Picture) -> Iterator[Violation]:
    """1 and 2: over is over."""
    for epoch, was in before.leases.items():
        for mark in ("fenced", "released"):
            is_now = now.leases[epoch][mark]
            # A fence from a clock that was ahead is brought back to the present; it holds all the while.
            brought_back = mark == "fenced" and is_now is not None and was[mark] is not None and is_now < was[mark]
            if was[mark] is not None and is_now != was[mark] and not brought_back:
                yield Violation(2, f"epoch {epoch} was {mark}, and is not any more")
    for job_id, was in before.jobs.items():
        if now.jobs[job_id]["lineage"] < was["lineage"]:
            yield Violation(3, f"{job_id} went back from lineage {was['lineage']} to {now.jobs[job_id]['lineage']}")
    newest = max(before.leases, default=0)
    for epoch in now.leases.keys() - before.leases.keys():
        if epoch <= newest:
            yield Violation(2, f"the new epoch {epoch} is not newer than {newest}")


def _progress(before: Picture, now: Picture) -> Iterator[Violation]:
    """3 and 4: what is committed stays, and goes on from the furthest."""
    fixed = ("job", "lineage", "step", "samples", "epoch", "segment", "uri", "sha", "previous", "reads")
    for number, was in before.checkpoints.items():
        row = now.checkpoints.get(number)
        if row is None or any(row[name] != was[name] for name in fixed) or (was["bad"] and not row["bad"]):
            yield Violation(4, f"checkpoint {number} of {was['job']} was rewritten")
    for number in sorted(now.checkpoints.keys() - before.checkpoints.keys()):
        row = now.checkpoints[number]
        older = [
            c for c in before.checkpoints.values()
            if c["job"] == row["job"] and not now.checkpoints[c["id"]]["bad"] and c["swept"] is None
        ]  # fmt: skip
        base = [c for c in older if c["lineage"] == row["lineage"] or c["id"] == row["previous"]]
        step, samples = max((c["step"] for c in base), default=0), max((c["samples"] for c in base), default=0)
        moved = row["step"] > step and row["samples"] > samples
        if base and not moved and not (row["final"] and (row["step"], row["samples"]) == (step, samples)):
            yield Violation(3, f"checkpoint {number} of {row['job']} is of step {row['step']}, after step {step}")
    for job_id, was in before.jobs.items():
        job = now.jobs[job_id]
        old, new = before.checkpoints.get(was["head"] or 0), now.checkpoints.get(job["head"] or 0)
        if old is None or job["lineage"] != was["lineage"] or now.checkpoints[old["id"]]["bad"]:
            continue
        if new is None or new["step"] < old["step"]:
            yield Violation(3, f"the head of {job_id} went back from step {old['step']} to {new and new['step']}")


def _grants(before: Picture, now: Picture) -> Iterator[Violation]:
    """No lease begins, or goes on under another epoch, for a job that is paused, or on a node that is set aside.

    Where it is known until when the node is there, the same processes may go on.
    """
    for epoch in now.leases.keys() - before.leases.keys():
        lease = now.leases[epoch]
        was, job = before.jobs.get(lease["job"], {}), now.jobs[lease["job"]]
        if job["paused"] is not None and was.get("paused") == job["paused"]:
            yield Violation(None, f"{job['id']} got epoch {epoch} while it was paused")
        for node in sorted({slot["node"] for slot in lease["slots"]}):
            aside = now.aside.get(node)
            if aside is None or (aside["goes"] is not None and lease["origin"] != epoch):
                continue
            if before.aside.get(node) == aside:
                yield Violation(None, f"{job['id']} got epoch {epoch} on {node}, which was set aside")


def _stops(before: Picture, now: Picture) -> Iterator[Violation]:
    """A job that is stopped ends with a commit of all that was heard of, unless its processes are gone without one."""
    for job in now.jobs.values():
        wished = job["state"] == "cancelled" and job["paused"] is not None and job["paused"].get("ends")
        if before.jobs.get(job["id"], job)["state"] != "active" or not wished or not job["error"].startswith("stopped"):
            continue
        for lease in before.live():
            segment = now.segments[lease["segment"]]
            goes_on = lease["job"] == job["id"] and lease["fenced"] is None and segment["epoch"] == lease["epoch"]
            if not goes_on or before.segments[segment["id"]]["state"] not in OPEN:
                continue
            if segment["state"] == "committed":
                end = now.checkpoints[segment["end"]]
                if job["head"] != end["id"] or end["step"] < now.beats.get(lease["epoch"], 0):
                    yield Violation(None, f"{job['id']} was stopped, and not all of {segment['id']} is in its head")
            elif now.leases[lease["epoch"]]["released"] is None:
                yield Violation(None, f"{job['id']} was stopped, and epoch {lease['epoch']} was not let commit")
