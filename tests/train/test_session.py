"""The session seen from the training loop, in this very process (world size 1, as the debug launcher runs it)."""

from __future__ import annotations

import json
import signal

import pytest
import torch

from elastic_core.protocol.trainer import Commit
from elastic_core.train.parallel.group import lost_peer
from elastic_core.train.process.worker import main
from tests.train.job import PROJECT, Job
from tests.train.ledger import FolderLedger, make_order


def run_here(job: Job, kind: type[FolderLedger] = FolderLedger, batch: int = 16) -> int:
    job.epoch += 1
    order = make_order(job.job_spec(), slots=1, batch=batch, epoch=job.epoch, total=job.total, dataset=job.rows)
    run_dir = job.run_dir()
    run_dir.create()
    run_dir.write_order(order)
    run_dir.write_json("settings.json", {"project": str(PROJECT), "store": str(job.store), "tasks": "tests.train.*"})
    job.ledger.set(epoch=order.epoch)
    return main(["--run-dir", str(run_dir.path), "--rank", "0"], connect=lambda token: kind(job.ledger.folder, token))


def last(job: Job) -> Commit:
    return job.ledger.commits()[-1]


def test_whole_job_runs_in_the_callers_process_and_leaves_its_signals_alone(new_job):
    before = signal.getsignal(signal.SIGTERM)
    job = new_job(entry="Regression", rows=96, total=960, params={"rows": 96})
    assert run_here(job, batch=32) == 0
    assert signal.getsignal(signal.SIGTERM) is before
    assert last(job).finished
    assert set(last(job).metrics) == {"loss", "held_out"}
    assert {"start", "restore", "first_step", "save", "evaluate"} <= set(last(job).timings)


def test_fencing_stops_training_and_spares_the_callers_process(new_job):
    class FencedLater(FolderLedger):
        def heartbeat(self, beat):
            if beat.step > 3:
                self.set(epoch=99)
            return super().heartbeat(beat)

    job = new_job(total=10**6, params={"sleep": 0.002})
    assert run_here(job, FencedLater) == 12
    assert job.ledger.commits() == []


def test_bf16_is_autocast_around_the_loops_body_and_weights_stay_fp32(new_job):
    for precision, half in (("bf16", 1.0), ("fp32", 0.0)):
        job = new_job(precision, entry="typed", rows=64, total=128, spec={"precision": precision})
        assert run_here(job) == 0
        assert last(job).metrics["half"] == half


@pytest.mark.parametrize("measure", ["samples", "progress"])
def test_a_loop_is_told_how_many_steps_its_work_is_at_the_base_batch_whatever_it_may_read(new_job, measure):
    """A schedule in steps is made for them: however far the batch may grow, its warm-up is the same part of the job."""
    work, batch = {"samples": 1024, "measure": measure}, {"min": 16, "max": 256, "base": 16}
    job = new_job(measure, entry="typed", rows=64, total=1024, spec={"work": work, "batch": batch})
    assert run_here(job, batch=64) == 0
    assert last(job).metrics["base_steps"] == 64


def test_a_loop_is_told_its_slot_its_allocation_and_which_batch_completes_a_step(new_job, tmp_path):
    spec = {"batch": {"min": 16, "max": 16, "max_per_slot": 10}}
    job = new_job(entry="placed", rows=32, total=32, spec=spec, params={"folder": str(tmp_path)})
    assert run_here(job) == 0
    lines = [json.loads(line) for line in (tmp_path / "batches").read_text().splitlines()]
    assert {tuple(line[:4]) for line in lines} == {("n", "cpu", 1, 16)}
    assert [line[4:] for line in lines] == [[8, False], [8, True], [8, False], [8, True]]


def test_gradients_are_clipped_to_their_norm(new_job):
    free = new_job("free", entry="typed", rows=64, total=16)
    clipped = new_job("clipped", entry="typed", rows=64, total=16, params={"clip": 0.25})
    assert run_here(free) == run_here(clipped) == 0
    assert last(free).metrics["moved"] > 0.5
    assert last(clipped).metrics["moved"] == pytest.approx(0.25, rel=1e-3)  # plain SGD at rate 1 moves by the gradient


def test_observations_tell_what_the_models_of_throughput_and_noise_need(new_job):
    job = new_job(
        rows=96, total=96 * 30, params={"sleep": 0.01}, spec={"batch": {"min": 8, "max": 64, "max_per_slot": 16}}
    )
    assert run_here(job, batch=48) == 0
    observed = job.ledger.observations()
    assert observed
    one = observed[-1]
    assert (one.num_slots, one.num_nodes, one.type) == (1, 1, "cpu")
    assert (one.global_batch, one.local_batch, one.accumulation) == (48, 16, 3)
    assert one.epoch == one.samples / 96
    assert one.samples == one.step * 48
    assert 0 < one.step_seconds < 1
    assert one.sync_seconds == 0
    assert one.samples_per_second > 0
    assert one.learning_rate == pytest.approx(1e-3 * 6**0.5)
    assert one.memory_bytes > 10**7
    assert any(one.grad_var is not None for one in observed)  # from the micro-batches, every few steps
    stays = new_job("b", rows=96, total=96 * 20, params={"sleep": 0.01}, spec={"batch": {"min": 16, "max": 16}})
    assert run_here(stays) == 0
    assert all(observation.grad_var is None for observation in stays.ledger.observations())


def test_noise_and_waiting_are_measured_between_ranks(new_job):
    job = new_job(rows=96, total=96 * 30, params={"sleep": 0.005})
    assert job.run(2, 48) == [0, 0]
    observed = job.ledger.observations()
    assert any(observation.grad_var is not None for observation in observed)
    assert all(0 < observation.sync_seconds < observation.step_seconds for observation in observed)


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ("steps_never", "without calling session.step"),
        ("steps_twice", "called twice for one batch"),
        ("unprepared", "before session.prepare"),
        ("prepares_twice", "prepare was called twice"),
        ("endless", "has no length"),
    ],
)
def test_wrong_use_of_the_session_says_what_to_do(new_job, entry, message):
    job = new_job(entry="misuse", rows=64, params={"how": entry})
    assert run_here(job) == 10
    assert message in job.error()["error"]


def test_readme_loop_trains_like_plain_torch(new_job):
    """A loop with the session's five lines gives the same numbers as the loop without them."""
    from elastic_core.state.order.sample_order import batch_indices
    from tests.train.tasks import data, network

    job = new_job(rows=96, total=320, params={"dropout": 0.0}, spec={"batch": {"min": 32, "max": 32}})
    assert run_here(job, batch=32) == 0
    from elastic_core.train.checkpoint.training_state import seed_everything

    seed_everything(11)
    model = network(0.0)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    x, y = data(96).tensors
    losses = []
    for step in range(10):
        rows = torch.from_numpy(batch_indices(11, 96, step * 32, 32))
        loss = torch.nn.functional.mse_loss(model(x[rows]), y[rows])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert [float.fromhex(value) for value in job.curve().values()] == losses


def test_a_lost_rank_is_known_behind_the_error_that_a_pipeline_stage_raises_from_it():
    lost = RuntimeError("[gloo/transport/tcp/pair.cc:553] Connection closed by peer")
    wrapped = RuntimeError("[Stage 1] failed to run forward")
    wrapped.__cause__ = lost
    assert lost_peer(wrapped)
    wrapped.__cause__ = ValueError("the user's own")
    assert not lost_peer(wrapped)
