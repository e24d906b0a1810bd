"""How a segment ends, or does not: boundaries, hand-overs, revocations, lost leases, errors, bad checkpoints."""

from __future__ import annotations

import time
from statistics import fmean

import pytest

from elastic_core.state.format.checkpoint_format import read_manifest
from elastic_core.state.stores.local_store import LocalStore
from elastic_core.train.steps.segment_progress import TARGET_STEPS
from tests.train import forked


def wait_for_steps(job, steps: int) -> None:
    deadline = time.monotonic() + 30
    while len(job.curve()) < steps:
        assert time.monotonic() < deadline, job.logs()
        time.sleep(0.005)


def test_lease_that_passes_on_keeps_the_processes_and_changes_the_batch(new_job):
    job = new_job(total=300)
    job.ledger.set(next_batches=[40, 25])
    assert job.run(2, 20, segment_steps=4) == [0, 0]
    commits = job.ledger.commits()
    assert [(commit.step, commit.samples, commit.final) for commit in commits] == [
        (4, 80, True), (8, 240, True), (11, 300, True),
    ]  # fmt: skip
    assert commits[-1].finished
    order = job.run_dir().order()
    assert (order.epoch, order.token, order.allocation.global_batch) == (3, "epoch-3", 25)
    assert len({commit.uri.rsplit("-", 1)[1][:8] for commit in commits}) == 1  # one process group wrote them all
    assert "start" in commits[0].timings
    assert "start" not in commits[1].timings


def test_job_whose_segments_have_one_step_each_is_observed_wherever_nothing_warms_up(new_job):
    job = new_job(total=1000)
    job.ledger.set(next_batches=[20, 20, 40, 40])
    assert job.run(1, 20, segment_steps=1) == [0]
    assert len(job.ledger.commits()) == 5
    assert [observation.step for observation in job.ledger.observations()] == [2, 3, 5]


def test_handed_over_run_equals_one_that_was_restarted_bit_for_bit(new_job):
    handed, restarted = new_job("handed", total=300), new_job("restarted", total=300)
    handed.ledger.set(next_batches=[40])
    assert handed.run(2, 20, segment_steps=4) == [0, 0]
    assert restarted.run(2, 20, segment_steps=4) == [0, 0]
    assert restarted.run(2, 40, segment_steps=4) == [0, 0]
    assert handed.curve() == restarted.curve()


def test_job_with_a_target_ends_at_the_step_whose_mean_loss_reaches_it_on_all_ranks(new_job):
    whole = new_job("whole", total=1600)
    assert whole.run(2) == [0, 0]
    losses = [float.fromhex(loss) for loss in whole.curve().values()]
    means = [fmean(losses[i - TARGET_STEPS : i]) for i in range(TARGET_STEPS, len(losses) + 1)]
    target = sorted(means)[len(means) // 2]
    reached = TARGET_STEPS + next(i for i, mean in enumerate(means) if mean <= target)
    job = new_job("until", total=1600, spec={"work": {"samples": 1600, "target_loss": target}})
    assert job.run(2) == [0, 0]
    assert job.ledger.commits()[-1].finished
    assert {max(job.curve(rank)) for rank in range(2)} == {reached}
    assert reached < len(losses)


def test_all_ranks_stop_at_one_step_within_one_of_hearing_of_a_revocation(new_job):
    job = new_job(total=10**6, params={"sleep": 0.03})
    workers = job.start(3, 30)
    wait_for_steps(job, 3)
    job.ledger.set(directive="boundary", reason="resize")
    heard_after = len(job.curve())
    assert forked.join(workers) == [0, 0, 0]
    (commit,) = job.ledger.commits()
    assert commit.final
    assert commit.samples == commit.step * 30
    assert {max(job.curve(rank)) for rank in range(3)} == {commit.step}
    # A heartbeat every 50 ms is at most two steps of 30 ms late; then one step to agree.
    assert commit.step <= heard_after + 4


def test_segment_ends_by_its_length_in_seconds(new_job):
    job = new_job(total=10**6, params={"sleep": 0.02})
    started = time.monotonic()
    assert job.run(2, 16, segment_seconds=0.5) == [0, 0]
    assert time.monotonic() - started < 20
    assert 2 <= job.ledger.commits()[-1].step < 100


def test_cancelled_job_stops_without_a_commit(new_job):
    job = new_job(total=10**6, params={"sleep": 0.01})
    workers = job.start(2)
    wait_for_steps(job, 2)
    job.ledger.set(directive="stop")
    assert forked.join(workers) == [12, 12]
    assert job.ledger.commits() == []


def test_fenced_process_ends_at_once_and_commits_nothing(new_job):
    job = new_job(total=10**6, params={"sleep": 0.01})
    workers = job.start(2)
    wait_for_steps(job, 2)
    job.ledger.set(epoch=99)
    codes = forked.join(workers)
    assert codes[0] == 12
    assert codes[1] in (11, 12)  # it may only see its peer vanish
    assert job.ledger.commits() == []


def test_trainer_that_cannot_renew_goes_on_then_stops_before_the_lease_ends(new_job):
    job = new_job(total=10**6, params={"sleep": 0.01})
    job.ledger.set(lease_seconds=3.0)
    workers = job.start(2, lease_seconds=3.0)
    wait_for_steps(job, 5)
    job.ledger.set(away=True)
    away_since = time.time()
    assert forked.join(workers) == [12, 12]
    last_beat = max(at for *_, at in job.ledger.read()["beats"])
    last_steps = [(job.folder / f"losses-rank{rank}").stat().st_mtime for rank in range(2)]
    assert max(last_steps) < last_beat + 3.0
    assert min(last_steps) > away_since + 1.0
    assert job.ledger.commits() == []


def test_control_plane_that_comes_back_in_time_is_not_noticed(new_job):
    job = new_job(
        total=900, params={"sleep": 0.02}, spec={"checkpoints": {"interval_seconds": None, "interval_steps": 5}}
    )
    workers = job.start(2, 30)
    wait_for_steps(job, 3)
    job.ledger.set(away=True)
    wait_for_steps(job, 14)
    assert job.ledger.commits() == []
    job.ledger.set(away=False)
    assert forked.join(workers) == [0, 0]
    assert job.ledger.commits()[-1].samples == 900
    observed = [observation.step for observation in job.ledger.observations()]
    assert observed == sorted(set(observed))


@pytest.mark.parametrize("rank", [0, 1])
def test_users_exception_ends_with_its_own_code_and_its_last_line(new_job, rank):
    job = new_job(entry="broken", rows=32, params={"rank": rank})
    codes = job.run(2)
    assert codes[rank] == 10
    assert codes[1 - rank] == 11
    assert job.error(rank)["error"] == "ZeroDivisionError: one over zero"
    assert "tasks.py" in job.error(rank)["traceback"]
    assert (
        "Another rank is gone" in job.error(1 - rank)["error"] or "Lost the other ranks" in job.error(1 - rank)["error"]
    )
    assert job.ledger.commits() == []


def test_loop_that_is_left_early_is_the_users_error(new_job):
    job = new_job(entry="leaves_early", rows=32)
    assert job.run(1) == [10]
    assert "only when it ends by itself" in job.error()["error"]


def test_changed_data_set_is_refused(new_job):
    job = new_job(rows=96)
    job.run(1, segment_steps=2)
    job.params["rows"] = 90
    assert job.run(1) == [10]
    assert "has 90 samples here, but had 96" in job.error()["error"]


def flip(path) -> None:
    content = bytearray(path.read_bytes())
    content[-40] ^= 1
    path.write_bytes(content)


def test_corrupt_checkpoint_is_passed_over_and_reported_and_the_one_before_is_used(new_job):
    spec = {"checkpoints": {"interval_seconds": None, "interval_steps": 3}}
    job, whole = new_job("job", spec=spec), new_job("whole", spec=spec)
    assert whole.run(2, 30) == [0, 0]
    assert job.run(2, 30, segment_steps=8) == [0, 0]
    newest, number = job.ledger.commits()[-1], len(job.ledger.commits()) - 1
    assert (newest.step, number > 0) == (8, True)
    flip(job.store / newest.uri / "shard-1.safetensors")
    assert job.run(2, 30) == [0, 0]
    ((bad, why),) = job.ledger.read()["bad"]
    assert bad == number
    assert "shard-1.safetensors" in why
    assert "is passed over" in job.run_dir().log(0).read_text()
    assert job.curve() == whole.curve()  # went back to the one before and trained the same again


def test_ranks_of_a_host_read_the_checkpoint_once_and_say_how_much_that_was(new_job):
    job = new_job("job")
    assert job.run(2, 30, segment_steps=4) == [0, 0]
    first = job.ledger.commits()[-1]
    assert "restored_from_store_bytes" not in first.timings
    assert job.run(3, 30) == [0, 0, 0]
    manifest = read_manifest(LocalStore(job.store), first.uri)
    rng = sum(tile.length for name, entry in manifest.tensors.items() if "rng/" in name for tile in entry.tiles)
    size = sum(file.size for file in manifest.files.values())
    # Ranks' random states are of another number of ranks, and nobody reads them. The manifest every process reads.
    assert job.ledger.commits()[-1].timings["restored_from_store_bytes"] == size - rng + 3 * len(manifest.content)
    assert "for itself" not in job.logs()


def test_no_readable_checkpoint_is_an_error_and_never_a_silent_start(new_job):
    job = new_job()
    assert job.run(2, segment_steps=3) == [0, 0]
    (commit,) = job.ledger.commits()
    (job.store / commit.uri / "shard-0.safetensors").unlink()
    assert job.run(2) == [11, 11]
    assert "does not start from step 0" in job.error()["error"]
    assert len(job.ledger.commits()) == 1


@pytest.mark.nightly
def test_interval_save_that_fails_is_said_and_training_goes_on_but_a_boundary_that_fails_ends_it(new_job):
    job = new_job(
        total=10**6, params={"sleep": 0.01}, spec={"checkpoints": {"interval_seconds": None, "interval_steps": 2}}
    )
    job.store.parent.mkdir(exist_ok=True)
    job.store.write_text("a file where the folder of the store should be")
    workers = job.start(2)
    wait_for_steps(job, 6)
    assert "training goes on without an interval checkpoint" in job.run_dir().log(0).read_text()
    job.ledger.set(directive="boundary")
    assert forked.join(workers) == [11, 11]
    assert "could not be written" in job.error()["error"]
    assert job.ledger.commits() == []


def test_other_world_size_goes_on_from_the_same_cursor(new_job):
    job = new_job(total=400)
    assert job.run(3, 30, segment_steps=5) == [0] * 3
    assert job.run(1, 64, segment_steps=2) == [0]
    assert job.run(4, 50) == [0] * 4
    assert [(c.step, c.samples) for c in job.ledger.commits()] == [(5, 150), (7, 278), (10, 400)]


def test_warm_start_takes_the_weights_and_nothing_else(new_job):
    first = new_job("first", entry="Regression", rows=96, total=960, params={"rows": 96})
    assert first.run(1, 32) == [0]
    (commit,) = first.ledger.commits()
    second = new_job("second", entry="Regression", rows=96, total=96, params={"rows": 96})
    second.store.symlink_to(first.store)
    assert second.run(1, 32, warm_start=commit.uri) == [0]
    (warm,) = second.ledger.commits()
    assert (warm.step, warm.samples) == (3, 96)
    cold = new_job("cold", entry="Regression", rows=96, total=96, params={"rows": 96})
    assert cold.run(1, 32) == [0]
    assert warm.metrics["held_out"] < cold.ledger.commits()[0].metrics["held_out"]
    assert set(warm.metrics) == {"loss", "held_out"}


def test_a_warm_start_from_another_manifest_than_was_committed_does_not_train(new_job):
    first = new_job("first", entry="Regression", rows=96, total=96, params={"rows": 96})
    assert first.run(1, 32) == [0]
    (commit,) = first.ledger.commits()
    second = new_job("second", entry="Regression", rows=96, total=96, params={"rows": 96})
    second.store.symlink_to(first.store)
    assert second.run(1, 32, warm_start=commit.uri, warm_start_sha256=64 * "0") != [0]
    assert second.ledger.commits() == []
    assert second.run(1, 32, warm_start=commit.uri, warm_start_sha256=commit.manifest_sha256) == [0]


@pytest.mark.sampled(1)
@pytest.mark.parametrize("options", [{"batch_norm": True, "dropout": 0.0}, {"scheduler": True}])
def test_buffers_and_schedulers_resume_bit_for_bit(new_job, options):
    whole, cut = new_job("whole", params=options), new_job("cut", params=options)
    assert whole.run(3, 30) == [0] * 3
    assert cut.run(3, 30, segment_steps=6) == [0] * 3
    assert cut.run(3, 30) == [0] * 3
    assert cut.curve() == whole.curve()
    assert shards(cut) == shards(whole)
    assert len({(cut.folder / f"buffers-rank{rank}").read_text() for rank in range(3)}) == 1


def shards(job) -> list[bytes]:
    """The newest checkpoint: weights, optimizer, random state."""
    return sorted(path.read_bytes() for path in (job.store / job.ledger.commits()[-1].uri).glob("*.safetensors"))


def test_adascale_resumes_bit_for_bit(new_job):
    spec = {"batch": {"min": 8, "max": 64, "base": 8, "learning_rate_rule": "adascale"}}
    whole, cut = new_job("whole", spec=spec), new_job("cut", spec=spec)
    assert whole.run(3, 30) == [0] * 3
    assert cut.run(3, 30, segment_steps=6) == [0] * 3
    assert cut.run(3, 30) == [0] * 3
    assert cut.curve() == whole.curve()
    assert shards(cut) == shards(whole)
