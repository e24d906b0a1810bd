"""Jobs whose measure is progress: they end by what their steps were worth, whatever the layout and whatever happens."""

from __future__ import annotations

import os
import signal
import time
from itertools import pairwise

import pytest

from elastic_core.spec.job import most_samples
from elastic_core.state.format import scalars as packing
from elastic_core.state.format.manifest import read_manifest
from elastic_core.state.stores.local_store import LocalStore
from elastic_core.train.data.audit import prove
from elastic_core.train.data.data_state import DataState
from elastic_core.train.gradients.learning_rate import WORK_UNITS
from elastic_core.train.steps.segment_progress import BATCH_STAYS, NOISE_UNKNOWN
from tests.train import forked
from tests.train.job import Job

BASE, ROWS = 8, 96


def progressing(new_job, name: str, *, total: int = 2_000, work: dict | None = None, batch: dict | None = None, **more):
    """A job of `total` samples of work at a base batch of 8."""
    spec = {
        "work": {"samples": total, "measure": "progress", **(work or {})},
        "batch": {"min": 1, "max": 256, "base": BASE, **(batch or {})},
        **more.pop("spec", {}),
    }
    params = {"dropout": 0.0, **more.pop("params", {})}  # ranks draw their own numbers for dropout
    return new_job(name, rows=ROWS, total=total, spec=spec, params=params, **more)


def end_of(job: Job) -> tuple[int, int, float | None]:
    (*_, last) = job.ledger.commits()
    assert last.finished
    return last.step, last.samples, last.progress


@pytest.mark.nightly
def test_one_two_and_four_workers_end_at_the_same_step_with_the_same_progress(new_job):
    ends = {}
    for world in (1, 2, 3, 4):
        job = progressing(new_job, f"on-{world}")
        assert job.run(world, 64) == [0] * world
        ends[world] = end_of(job)
    assert len(set(ends.values())) == 1, ends
    step, samples, progress = ends[1]
    assert samples == step * 64
    assert 2_000 <= progress < 2_000 + 64
    assert 2_000 / 64 < step < 2_000 / BASE  # larger steps are worth more than base steps, and less than their samples


def test_at_the_base_batch_progress_is_what_is_read(new_job):
    job = progressing(new_job, "base", total=400)
    assert job.run(2, BASE) == [0, 0]
    assert end_of(job) == (50, 400, 400.0)


@pytest.mark.nightly
def test_every_kind_of_interruption_gives_the_same_end(new_job):
    whole = progressing(new_job, "whole")
    assert whole.run(2, 64) == [0, 0]

    resized = progressing(new_job, "resized")
    for world in (1, 4, 2):
        assert resized.run(world, 64, segment_steps=12) == [0] * world
    assert resized.run(3, 64) == [0] * 3

    steps = {"checkpoints": {"interval_seconds": None, "interval_steps": 7}}
    killed = progressing(new_job, "killed", spec=steps, params={"sleep": 0.05})
    workers = killed.start(2, 64)
    while not killed.ledger.commits():
        time.sleep(0.01)
    os.kill(workers[1].pid, signal.SIGKILL)
    forked.join(workers)
    assert not killed.ledger.commits()[-1].final
    killed.params = {"dropout": 0.0}
    assert killed.run(4, 64) == [0] * 4

    assert end_of(resized) == end_of(whole) == end_of(killed)


def test_the_schedule_of_learning_rates_follows_progress(new_job):
    job = progressing(new_job, "fading", entry="Fading", params={"rows": ROWS}, batch={"learning_rate_rule": "none"})
    assert job.run(1, 64) == [0]
    observed = job.ledger.observations()
    assert observed
    for seen in observed:
        before = (seen.progress - seen.gain * BASE) / 2_000  # of the last step
        assert seen.learning_rate == pytest.approx(1e-3 * (1.0 - before / 2), rel=1e-5)
        assert before < (seen.samples - 64) / 2_000 or seen.step == 1  # it is not the part of samples that were read


def test_a_torch_scheduler_is_stepped_once_for_each_base_step_that_was_made(new_job):
    job = progressing(
        new_job, "cosine", total=160, params={"scheduler": True}, batch={"learning_rate_rule": "none"},
        spec={"checkpoints": {"interval_seconds": None, "interval_steps": 2}},
    )  # fmt: skip
    assert job.run(1, 64, segment_steps=3) == [0]
    assert job.run(2, 64) == [0, 0]
    commits = job.ledger.commits()
    assert len(commits) > 2
    for commit in commits:
        scheduler = packing.unpack(read_manifest(LocalStore(job.store), commit.uri).scalars["scheduler"])
        assert scheduler["last_epoch"] == min(int(commit.progress // BASE), 160 // BASE)
    assert commits[-1].step < 160 // BASE  # fewer steps, and the schedule has come as far


@pytest.mark.nightly
def test_steps_at_two_batches_add_up(new_job):
    job = progressing(new_job, "two")
    assert job.run(2, 16, segment_steps=30) == [0, 0]
    assert job.run(2, 128) == [0, 0]
    first, last = job.ledger.commits()
    assert first.progress < 30 * 16
    assert 0 < first.gain < last.gain < 128 / BASE
    assert last.progress >= 2_000 > last.progress - last.gain * BASE - 1 / WORK_UNITS  # not before it is done
    told = [beat for beat in job.ledger.read()["observations"] if beat["progress"] is not None]
    assert all(a["progress"] < b["progress"] for a, b in pairwise(told))


@pytest.mark.sampled(1)
@pytest.mark.parametrize("rule", ["sqrt", "adascale"])
def test_steps_at_a_constant_batch_follow_the_gain(new_job, rule):
    """AdaScale at S = 16: steps are the work by the sum of gains, and the rate is the base rate x gain."""
    job = progressing(new_job, rule, batch={"learning_rate_rule": rule}, params={"sleep": 0.005})
    assert job.run(2, 128) == [0, 0]
    observed = job.ledger.observations()
    step, _, progress = end_of(job)
    mean = progress / BASE / step
    assert 1.0 < mean < 16.0
    assert step == -(-progress // (mean * BASE))
    gains = [o.gain for o in observed]
    assert min(gains) <= mean * 1.5
    assert mean <= max(gains) * 1.5
    factors = [o.learning_rate / 1e-3 for o in observed]
    assert factors == [pytest.approx(o.gain if rule == "adascale" else 4.0, rel=1e-6) for o in observed]


def test_the_audit_proves_finished_passes_and_the_last_in_part(new_job):
    job = progressing(new_job, "audited", total=1_100, spec={"audit": "full"})
    assert job.run(2, 64, segment_steps=4) == [0, 0]
    assert job.run(3, 64) == [0] * 3
    _, samples, _ = end_of(job)
    passes, rest = divmod(samples, ROWS)
    assert rest
    (*_, last) = job.ledger.commits()
    store = LocalStore(job.store)
    state = DataState.from_scalars(read_manifest(store, last.uri).scalars)
    results = prove([c.fingerprints for c in job.ledger.commits()], ROWS, store, state.plan)
    assert [(r.epoch, r.count, r.proven, r.every_index) for r in results] == [
        *((epoch, ROWS, True, True) for epoch in range(passes)),
        (passes, rest, True, True),
    ]


def test_the_cap_ends_the_job_and_says_so(new_job):
    job = progressing(new_job, "capped", work={"max_samples": 1_000})
    assert job.run(2, 64) == [0, 0]
    step, samples, progress = end_of(job)
    assert (step, samples) == (16, 1_000)  # the last batch is what is left
    assert progress < 2_000
    (note,) = job.ledger.commits()[-1].notes
    assert note.startswith("ended at work.max_samples: 1000 samples were read, and ")


def test_noise_that_was_never_measured_warns_and_takes_no_gain(new_job):
    job = progressing(new_job, "unmeasured", total=40)
    assert job.run(1, 1) == [0]
    assert end_of(job) == (40, 40, 40.0)  # one sample at a time has no parts to compare
    assert NOISE_UNKNOWN in job.ledger.commits()[-1].notes
    measured = progressing(new_job, "measured", total=400)
    assert measured.run(1, 16) == [0]
    assert measured.ledger.commits()[-1].notes == ()


def test_without_a_cap_a_job_reads_no_more_than_is_said(new_job):
    job = progressing(new_job, "bounded", total=400)
    assert job.run(2, 256) == [0, 0]
    _, samples, _ = end_of(job)
    assert samples <= most_samples(job.job_spec(), 400) == 400 * 256 // BASE + 256


def test_samples_stay_the_measure_of_others(new_job):
    job = new_job("others", total=400)
    assert job.run(1, 64) == [0]
    last = job.ledger.commits()[-1]
    assert (last.samples, last.progress, last.gain, last.notes) == (400, None, None, ())


@pytest.mark.parametrize(
    ("slots", "batch", "comm", "says"),
    [
        (2, {"min": 8, "max": 64, "base": 16}, {"algorithm": "local_sgd", "interval": 4}, True),  # weights are averaged
        (1, {"min": 8, "max": 64, "base": 16}, {}, False),  # some steps are cut in parts
        (2, {"min": 8, "max": 64, "base": 16}, {}, False),  # two gradients to compare
        (1, {"min": 8, "max": 64, "base": 16, "max_per_slot": 8}, {}, False),  # two micro-batches
        (1, {"min": 8, "max": 16, "base": 16}, {}, False),  # it could not grow
    ],
)
def test_a_batch_that_waits_for_noise_that_nothing_measures_says_what_to_do(new_job, slots, batch, comm, says):
    job = new_job("waiting", total=400, spec={"batch": batch, "comm": comm})
    assert job.run(slots, 16) == [0] * slots
    assert (BATCH_STAYS in job.ledger.commits()[-1].notes) is says
