"""A job whose layers lie on slots of several types trains as one process does, and goes on under any other stages."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from torch import Tensor

from elastic_core.domain import PlacedStage, to_json
from elastic_core.state.format.checkpoint_format import read_manifest, read_tensors
from elastic_core.state.stores.local_store import LocalStore
from elastic_core.train.checkpoint.training_state import seed_everything
from elastic_core.train.data.audit import prove
from elastic_core.train.data.batches import DataPlan
from elastic_core.train.layouts import dense_fallback
from examples.ctr import CTR, CTRModel, CTRParams
from tests.train.job import Job

SMALL = {"categories": 3, "rows": 101, "dim": 4, "width": 8, "depth": 2, "samples": 400}
BATCH = 50
LAYERS = 5  # embeddings, interaction, two of the network, head


def staged(*counts: int, ends: Sequence[int]) -> tuple[PlacedStage, ...]:
    """Stages of so many slots, up to these layers, on "cpu" and "paced" in turns."""
    starts = [0, *ends[:-1]]
    return tuple(
        PlacedStage(layers=(start, end), type=("cpu", "paced")[number % 2], num_slots=count)
        for number, (count, start, end) in enumerate(zip(counts, starts, ends, strict=True))
    )


def a_job(new_job, name: str, steps: int, **params: object) -> Job:
    job: Job = new_job(
        name, entry="clicks", rows=400, total=BATCH * steps, params={**SMALL, **params},
        spec={"batch": {"min": 1, "max": 4096, "base": BATCH, "max_per_slot": params.get("max_local")}},
    )  # fmt: skip
    return job


def run(job: Job, stages: tuple[PlacedStage, ...], steps: int | None = None) -> list[int]:
    return job.run(sum(stage.num_slots for stage in stages), BATCH, stages=stages, segment_steps=steps)


def losses(job: Job) -> dict[int, float]:
    curves = [job.curve(rank) for rank in range(8)]
    return {step: float.fromhex(loss) for curve in curves for step, loss in curve.items()}


def saved(job: Job, commit: int = -1) -> dict[str, Tensor]:
    """The state of a checkpoint, without what belongs to one rank."""
    store = LocalStore(job.store)
    tensors = read_tensors(store, read_manifest(store, job.ledger.commits()[commit].uri))
    return {name: tensor for name, tensor in tensors.items() if not name.startswith("rng/")}


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    ("stages", "params"),
    [
        (staged(2, 1, ends=(1, LAYERS)), {}),
        (staged(1, 3, ends=(2, LAYERS)), {"optimizer": "sgd", "clip": 0.05}),
        (staged(2, 1, 2, ends=(1, 3, LAYERS)), {"max_local": 7}),
        (staged(3, ends=(LAYERS,)), {}),
    ],
    ids=["table|network", "narrow|wide", "three stages", "one stage"],
)
def test_the_loss_is_that_of_one_process_and_each_sample_is_read_once(new_job, stages, params):
    alone, job = a_job(new_job, "alone", 9, **params), a_job(new_job, "placed", 9, **params)
    assert alone.run(1, BATCH) == [0]
    assert set(run(job, stages)) == {0}
    assert losses(job) == pytest.approx(losses(alone), rel=1e-6)
    verdicts = prove([commit.fingerprints for commit in job.ledger.commits()], 400)
    assert [(verdict.count, verdict.problem) for verdict in verdicts] == [(400, ""), (50, "")]
    assert saved(job).keys() == saved(alone).keys()
    for name, tensor in saved(alone).items():
        torch.testing.assert_close(saved(job)[name], tensor, rtol=1e-4, atol=1e-6, msg=name)


@pytest.mark.nightly
def test_the_state_is_the_same_to_the_bit_under_any_stages_and_under_none(new_job):
    """The job is done, so each start restores and commits without a step."""
    job = a_job(new_job, "done", 3)
    assert set(run(job, staged(2, 1, ends=(1, LAYERS)))) == {0}
    written = saved(job)
    assert "optim/embeddings.table.weight/sum" in written
    for stages in (staged(1, 2, 1, ends=(2, 3, LAYERS)), staged(3, 2, ends=(1, LAYERS)), staged(2, ends=(LAYERS,))):
        assert set(run(job, stages)) == {0}
        assert_equal(saved(job), written)
    assert job.run(2, BATCH) == [0, 0]
    assert_equal(saved(job), written)
    scalars = [read_manifest(LocalStore(job.store), commit.uri).scalars for commit in job.ledger.commits()]
    assert all(other["optimizer"] == scalars[0]["optimizer"] for other in scalars)


@pytest.mark.nightly
def test_from_stages_to_stages_and_to_one_type_it_trains_as_if_nothing_had_happened(new_job):
    alone, job = a_job(new_job, "alone", 8), a_job(new_job, "chain", 8)
    assert alone.run(1, BATCH) == [0]
    for stages in (
        staged(1, 1, ends=(1, LAYERS)),
        staged(2, 1, 1, ends=(1, 2, LAYERS)),
        staged(3, 1, ends=(2, LAYERS)),
    ):
        assert set(run(job, stages, steps=2)) == {0}
    assert job.run(2, BATCH) == [0, 0]
    assert job.ledger.commits()[-1].finished
    assert losses(job) == pytest.approx(losses(alone), rel=1e-6)


@pytest.mark.nightly
def test_killed_and_started_again_it_computes_the_same_bits(new_job):
    stages = staged(2, 1, ends=(1, LAYERS))
    whole, killed = a_job(new_job, "whole", 6), a_job(new_job, "killed", 6)
    assert set(run(whole, stages, steps=3) + run(whole, stages)) == {0}
    killed.crash = (1, "save.part-written")  # of the second checkpoint: a rank that keeps rows
    assert set(run(killed, stages, steps=3)) != {0}
    assert killed.ledger.commits() == []
    killed.crash = None
    assert set(run(killed, stages, steps=3) + run(killed, stages)) == {0}
    assert losses(killed) == losses(whole)
    assert_equal(saved(killed), saved(whole))


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    ("slots", "after"),
    [([0, 2], staged(1, 1, ends=(1, LAYERS))), ([0, 1, 2], staged(2, 1, ends=(3, LAYERS)))],
    ids=["fewer keepers of rows", "layers move to them"],
)
def test_in_place_it_is_resized_without_the_store_and_goes_on_as_after_a_restart(new_job, slots, after):
    before = staged(2, 1, ends=(1, LAYERS))
    renewed, kept = a_job(new_job, "renewed", 6), a_job(new_job, "kept", 6)
    assert set(run(renewed, before, steps=3) + run(renewed, after)) == {0}
    kept.ledger.set(next_slots=[slots], next_stages=[to_json(after)])
    assert set(run(kept, before, steps=3)) == {0}
    assert losses(kept) == losses(renewed)
    assert_equal(saved(kept), saved(renewed))
    assert kept.ledger.commits()[-1].timings["restored_from_store_bytes"] == 0


def assert_equal(found: dict[str, Tensor], wanted: dict[str, Tensor]) -> None:
    assert found.keys() == wanted.keys()
    assert [name for name, tensor in wanted.items() if not torch.equal(found[name], tensor)] == []


@pytest.mark.nightly
@pytest.mark.parametrize("options", [{"optimizer": "adagrad"}, {"optimizer": "sgd", "clip": 0.05}], ids=str)
def test_late_updates_reach_their_rows_one_step_later_each_once_and_all_before_a_checkpoint(new_job, options):
    """Beside a loop in this process that does so by its own means: a segment of four steps, and one of five."""
    job = a_job(new_job, "late", 9, late=True, **options)
    stages = staged(2, 1, ends=(1, LAYERS))
    assert set(run(job, stages, steps=4) + run(job, stages)) == {0}
    curve, model = late_by_hand(job, segments=(4, 5))
    assert losses(job) == pytest.approx(curve, rel=1e-6)
    table = saved(job)["model/embeddings.table.weight"]
    torch.testing.assert_close(table, model.embeddings.table.weight.detach(), rtol=1e-4, atol=1e-6)
    verdicts = prove([commit.fingerprints for commit in job.ledger.commits()], 400)
    assert [(verdict.count, verdict.problem) for verdict in verdicts] == [(400, ""), (50, "")]
    in_time, _ = late_by_hand(job, segments=(1,) * 9)
    assert losses(job) != pytest.approx(in_time, rel=1e-6)


def late_by_hand(job: Job, segments: Sequence[int]) -> tuple[dict[int, float], CTRModel]:
    seed_everything(job.job_spec().seed)
    task, clip = CTR(CTRParams(**SMALL)), job.params.get("clip")
    kind = {"adagrad": torch.optim.Adagrad, "sgd": torch.optim.SGD}[job.params["optimizer"]]
    model = task.model()
    dense_fallback(model)
    rows = model.embeddings.table.weight
    plan = DataPlan(job.job_spec().seed, 400, job.total, None)
    of_others = [p for p in model.parameters() if p is not rows]
    optimizer_of_rows = kind([rows], lr=task.params.learning_rate)
    optimizer = kind(of_others, lr=task.params.learning_rate)
    curve: dict[int, float] = {}
    for steps in segments:
        late = None
        for _ in range(steps):
            indices = torch.from_numpy(plan.batch(BATCH * len(curve), BATCH, 0, BATCH))
            loss = task.loss(model, [tensor[indices] for tensor in task.dataset().tensors])
            curve[len(curve) + 1] = loss.item()
            model.zero_grad()
            loss.backward()
            late, rows.grad = rows.grad, late
            dense = [p.grad.clone() for p in of_others]
            if clip is not None:
                torch.nn.utils.clip_grad_norm_(model.parameters(), clip)
            optimizer.step()
            optimizer_of_rows.step()
        if clip is not None:
            late = late * min(1.0, clip / float(torch.cat([grad.flatten() for grad in (late, *dense)]).norm()))
        rows.grad = late
        optimizer_of_rows.step()
    return curve, model
