"""The ordinary loop, run by a real worker in this process: it learns, stops, goes on, and reads each image once."""

from __future__ import annotations

import json
from pathlib import Path

from elastic_core.host.rundir import RunDir
from elastic_core.protocol.process_groups import LaunchOrder
from elastic_core.spec import JobSpec
from elastic_core.train.data.audit import prove
from elastic_core.train.process.worker import main
from tests.train.ledger import FolderLedger, make_order

ROOT = Path(__file__).parents[2]
IMAGES = 1497
EPOCHS = 4


def work(folder: Path, order: LaunchOrder) -> int:
    run_dir = RunDir(folder / "run" / str(order.epoch))
    run_dir.create()
    run_dir.write_order(order)
    run_dir.write_json("settings.json", {"project": str(ROOT), "store": str(folder / "store"), "tasks": "examples.*"})
    ledger = FolderLedger(folder / "ledger")
    ledger.set(epoch=order.epoch, order=json.loads((run_dir.path / "order.json").read_text()))
    return main(
        ["--run-dir", str(run_dir.path), "--rank", "0"], connect=lambda token: FolderLedger(folder / "ledger", token)
    )


def test_it_learns_over_two_segments_and_reads_every_image_once_an_epoch(tmp_path):
    spec = JobSpec.model_validate(json.loads((ROOT / "examples" / "specs" / "plain-loop.json").read_text()))
    ledger, codes = FolderLedger(tmp_path / "ledger"), []
    for epoch, (batch, steps) in enumerate([(32, 70), (64, None)], start=1):
        order = make_order(
            spec, slots=1, batch=batch, epoch=epoch, total=EPOCHS * IMAGES, dataset=IMAGES, segment_steps=steps,
            records=ledger.records(),
        )  # fmt: skip
        codes.append(work(tmp_path, order))
    assert codes == [0, 0]

    commits = ledger.commits()
    assert [commit.samples for commit in commits] == [70 * 32, EPOCHS * IMAGES]
    losses = [observation.loss for observation in ledger.observations()]
    assert losses[-1] < 0.6 * losses[0]
    verdicts = prove([commit.fingerprints for commit in commits], IMAGES)
    assert [verdict.proven for verdict in verdicts] == [True] * EPOCHS
