"""A job with parameter servers trains as by all-reduce, and goes on with other numbers of workers and servers."""

from __future__ import annotations

import json

import pytest
import torch
from torch import Tensor

from elastic_core.domain import Layout, to_json
from elastic_core.state.format.checkpoint_format import read_manifest, read_tensors
from elastic_core.state.stores.local_store import LocalStore
from elastic_core.train.data.audit import prove
from tests.train.job import Job

ROWS, BATCH = 96, 26  # a batch that neither workers nor micro-batches divide


def a_job(new_job, name: str, steps: int, *, most: int | None = None, **params: object) -> Job:
    job: Job = new_job(
        name, rows=ROWS, total=BATCH * steps, params={"dropout": 0.0, **params},
        spec={"batch": {"min": 1, "max": 4096, "base": BATCH, "max_per_slot": most}},
    )  # fmt: skip
    return job


def run(job: Job, workers: int, servers: int, steps: int | None = None) -> None:
    layout = Layout(data=workers, servers=servers)
    assert set(job.run(layout.world_size, BATCH, layout=layout, segment_steps=steps)) == {0}


def losses(job: Job, rank: int = 0) -> dict[int, float]:
    return {step: float.fromhex(loss) for step, loss in job.curve(rank).items()}


def saved(job: Job, commit: int = -1) -> dict[str, Tensor]:
    """The state of a checkpoint, without what belongs to one rank."""
    store = LocalStore(job.store)
    tensors = read_tensors(store, read_manifest(store, job.ledger.commits()[commit].uri))
    return {name: tensor for name, tensor in tensors.items() if not name.startswith("rng/")}


def assert_equal(found: dict[str, Tensor], wanted: dict[str, Tensor]) -> None:
    assert found.keys() == wanted.keys()
    assert [name for name, tensor in wanted.items() if not torch.equal(found[name], tensor)] == []


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    ("workers", "servers", "options"),
    [
        (2, 1, {}),
        (1, 2, {"clip": 0.05}),
        (3, 2, {"most": 4, "scheduler": True}),
        (2, 3, {"batch_norm": True}),
    ],
    ids=["2+1", "1+2 clipped", "3+2 accumulated, scheduled", "2+3 with buffers"],
)
def test_it_trains_as_replicas_that_sum_their_gradients_and_reads_each_sample_once(new_job, workers, servers, options):
    summed, served = a_job(new_job, "summed", 6, **options), a_job(new_job, "served", 6, **options)
    assert set(summed.run(workers, BATCH)) == {0}
    run(served, workers, servers)
    assert losses(served) == pytest.approx(losses(summed), rel=1e-5)
    assert len(losses(served)) == 6
    assert saved(served).keys() == saved(summed).keys()
    for name, tensor in saved(summed).items():
        torch.testing.assert_close(saved(served)[name], tensor, rtol=1e-4, atol=1e-5, msg=name)
    verdicts = prove([commit.fingerprints for commit in served.ledger.commits()], ROWS)
    assert [(verdict.count, verdict.problem) for verdict in verdicts] == [(96, ""), (60, "")]


def test_its_state_lies_with_servers_a_part_with_each(new_job):
    """Of the large parameter each server writes its rows, and of its optimizer state; workers write neither."""
    job = a_job(new_job, "job", 2, batch_norm=True)
    run(job, 2, 2)
    manifest = read_manifest(LocalStore(job.store), job.ledger.commits()[-1].uri)
    writers = {
        name: sorted({tile.file.rpartition("-")[2] for tile in entry.tiles}) for name, entry in manifest.tensors.items()
    }
    assert len(writers["model/middle.weight"]) == len(writers["optim/middle.weight/exp_avg"]) == 2
    assert writers["model/middle.weight"] == writers["optim/middle.weight/exp_avg"]
    assert not set(writers["model/norm.running_mean"]) & set(writers["model/middle.weight"])


@pytest.mark.nightly
def test_the_state_is_the_same_to_the_bit_with_any_servers_and_with_none(new_job):
    """The job is done, so each start restores and commits without a step."""
    job = a_job(new_job, "done", 3, batch_norm=True, scheduler=True)
    run(job, 2, 2)
    written = saved(job)
    for workers, servers in ((1, 3), (3, 1)):
        run(job, workers, servers)
        assert_equal(saved(job), written)
    assert job.run(2, BATCH) == [0, 0]
    assert_equal(saved(job), written)
    run(job, 1, 1)
    assert_equal(saved(job), written)
    scalars = [read_manifest(LocalStore(job.store), commit.uri).scalars for commit in job.ledger.commits()]
    assert all(other["optimizer"] == scalars[0]["optimizer"] for other in scalars)
    assert all(other["scheduler"] == scalars[0]["scheduler"] for other in scalars)


@pytest.mark.nightly
def test_from_replicas_to_servers_and_back_it_trains_as_if_nothing_had_happened(new_job):
    alone, job = a_job(new_job, "alone", 8, scheduler=True), a_job(new_job, "chain", 8, scheduler=True)
    assert alone.run(1, BATCH) == [0]
    assert job.run(2, BATCH, segment_steps=2) == [0, 0]
    run(job, 2, 1, steps=2)
    run(job, 1, 2, steps=2)
    assert job.run(3, BATCH) == [0, 0, 0]
    assert job.ledger.commits()[-1].finished
    assert losses(job) == pytest.approx(losses(alone), rel=1e-5)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("victim", [1, 2], ids=["a worker", "a server"])
def test_killed_and_started_again_it_computes_the_same_bits(new_job, victim):
    whole, killed = a_job(new_job, "whole", 6), a_job(new_job, "killed", 6)
    run(whole, 2, 1, steps=3)
    run(whole, 2, 1)
    killed.crash = (victim, "save.part-written")
    layout = Layout(data=2, servers=1)
    assert set(killed.run(3, BATCH, layout=layout, segment_steps=3)) != {0}
    assert killed.ledger.commits() == []
    killed.crash = None
    run(killed, 2, 1, steps=3)
    run(killed, 2, 1)
    assert losses(killed) == losses(whole)
    assert_equal(saved(killed), saved(whole))


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("slots", "after"),
    [([0, 2], Layout(data=1, servers=1)), ([0, 1, 2], Layout(data=1, servers=2)), ([0, 1], Layout(data=2))],
    ids=["one worker fewer", "a worker becomes a server", "to replicas"],
)
def test_in_place_it_is_resized_and_goes_on_as_after_a_restart(new_job, slots, after):
    renewed, kept = a_job(new_job, "renewed", 6), a_job(new_job, "kept", 6)
    run(renewed, 2, 1, steps=3)
    assert set(renewed.run(after.world_size, BATCH, layout=after)) == {0}
    kept.ledger.set(next_slots=[slots], next_layouts=[to_json(after)])
    run(kept, 2, 1, steps=3)
    assert losses(kept) == losses(renewed)
    assert_equal(saved(kept), saved(renewed))
    assert kept.ledger.commits()[-1].timings["restored_from_store_bytes"] == 0


def test_the_first_workers_buffers_count(new_job):
    job = a_job(new_job, "job", 3, batch_norm=True)
    run(job, 2, 1)
    first, second = ((job.folder / f"buffers-rank{rank}").read_text() for rank in (0, 1))
    assert first == second
    assert json.loads(first)[0] != [0.0] * 160  # the running mean has moved


def test_gradient_noise_is_measured_from_the_workers(new_job):
    served, summed = a_job(new_job, "served", 9), a_job(new_job, "summed", 9)
    run(served, 2, 1)
    assert set(summed.run(2, BATCH)) == {0}
    noise = [[(seen.grad_sqr, seen.grad_var) for seen in job.ledger.observations()] for job in (served, summed)]
    assert noise[0], "observations were reported"
    for of_served, of_summed in zip(noise[0], noise[1], strict=True):
        assert None not in of_served
        assert of_served == pytest.approx(of_summed, rel=1e-3)
