"""Metrics of a checkpoint on its task's held-out data, on the CPU: `python -m elastic_core.train.process.evaluate`."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

from elastic_core import logs
from elastic_core.errors import CorruptCheckpoint, UserError
from elastic_core.host.rundir import RunDir
from elastic_core.host.worker_user.giving import let_read
from elastic_core.host.worker_user.identity import WorkerUser
from elastic_core.protocol.process_groups import code_of
from elastic_core.protocol.service import JobRecords
from elastic_core.protocol.trainer import check_figures
from elastic_core.settings import Settings
from elastic_core.spec import JobSpec, entry_points
from elastic_core.state.job_code import pinned_code
from elastic_core.state.store_access import access_brokers, store_folders
from elastic_core.state.store_access.store_grants import StoreAccess, StoreGrant
from elastic_core.train.process import child

TIMEOUT_SECONDS = 3600.0
Measured = TypeVar("Measured")


def evaluate_checkpoint(
    settings: Settings, spec: JobSpec, uri: str, sha256: str | None = None, code: str = ""
) -> dict[str, float]:
    """Metrics by name, {} if the task evaluates nothing; from a process of its own.

    `uri` is the checkpoint's directory in the store, `sha256` its manifest's if known, `code` the SHA-256 of the job's
    pinned code, if there is any. Raises `CorruptCheckpoint`, and `UserError` for whatever the task's code raises, and
    for more metrics than any job needs.
    """
    answered = _asked(settings, spec, uri, sha256, code, [])
    metrics = {str(name): float(value) for name, value in answered.items()}
    check_figures("what evaluate returns", metrics)  # it is kept with the job, and shown with it
    return metrics


def evaluate_each(
    settings: Settings, spec: JobSpec, uri: str, sha256: str | None = None, code: str = ""
) -> list[float]:
    """A figure of each held-out sample (`Task.evaluate_each`). Raises as `evaluate_checkpoint`, and `UserError` for a
    task that gives none."""
    figures = [float(figure) for figure in _asked(settings, spec, uri, sha256, code, ["--each"])]
    if not figures:
        raise UserError(
            f"{spec.entry_point} gives no figure of each held-out sample, so that nobody can tell a better model from "
            "a lucky one: give the task evaluate_each, or leave alpha out"
        )
    return figures


def _asked(settings: Settings, spec: JobSpec, uri: str, sha256: str | None, code: str, more: Sequence[str]) -> Any:
    entry_points.check(spec.entry_point, settings.tasks)
    arguments = ["--checkpoint", uri, *(["--sha256", sha256] if sha256 else []), *more]
    grant = StoreGrant(who=f"the evaluation of {uri}", read=(uri,))
    with access_brokers.serving(settings, grant) as access, tempfile.TemporaryDirectory(prefix="elastic-") as folder:
        if access is not None:
            RunDir(Path(folder)).write(access)
        if (pinned := pinned_code.fetch(settings, code, RunDir(Path(folder)).code)) is not None:
            arguments += ["--code", str(pinned)]
        user = WorkerUser.of(settings)
        if user is not None:
            store_folders.open_folders(settings, user, grant)
            let_read(Path(folder), user)
        arguments += ["--access", folder]
        return child.call("elastic_core.train.process.evaluate", spec, settings, arguments, TIMEOUT_SECONDS)


def evaluate_job(control: JobRecords, settings: Settings, job_id: str) -> dict[str, float]:
    """Metrics of the job's newest checkpoint that can be read. Raises `UserError` when there is none."""
    return of_newest(control, settings, job_id, evaluate_checkpoint)


def of_newest(control: JobRecords, settings: Settings, job_id: str, measure: Callable[..., Measured]) -> Measured:
    """What `measure` says of the job's newest checkpoint that can be read; it is called as `evaluate_checkpoint` is."""
    job = control.job(job_id)
    good = [record for record in control.checkpoints(job_id) if not record.bad]
    faults = []
    for record in sorted(good, key=lambda record: (record.lineage, record.step), reverse=True):
        try:
            return measure(settings, job.spec, record.uri, record.manifest_sha256, code_of(job.results).sha256)
        except CorruptCheckpoint as error:
            faults.append(str(error))
    raise UserError(
        f"Job {job_id} has no checkpoint that could be evaluated. {'; '.join(faults) or 'None is committed.'}"
    )


def main(argv: Sequence[str]) -> int:
    logs.configure("evaluate")
    parser = child.parser("elastic_core.train.process.evaluate", __doc__)
    parser.add_argument("--checkpoint", required=True, metavar="URI", help="its directory, relative to the store")
    parser.add_argument("--sha256", help="SHA-256 of its manifest, as the ledger has it")
    parser.add_argument("--each", action="store_true", help="a figure of each held-out sample, and no metrics")
    parser.add_argument("--code", type=Path, metavar="DIR", help="folder of the job's pinned code, if it has any")
    parser.add_argument("--access", type=Path, metavar="DIR", help="folder of its access to the store, if it needs any")
    options = parser.parse_args(argv)
    access = RunDir(options.access).read(StoreAccess) if options.access else None
    for folder in filter(None, (Settings().project, options.code)):
        entry_points.reach(folder)
    return child.answer(
        options.output,
        lambda: _evaluate(
            child.read_spec(options.spec), Settings(), options.checkpoint, options.sha256, access, options.each
        ),
    )


def _evaluate(
    spec: JobSpec, settings: Settings, uri: str, sha256: str | None, access: StoreAccess | None, each: bool
) -> dict[str, float] | list[float]:
    entry_points.check(spec.entry_point, settings.tasks)
    from elastic_core.state.store_access.brokered_store import open_for_job
    from elastic_core.train.checkpoint.restore import read_weights
    from elastic_core.train.checkpoint.training_state import load_weights, seed_everything
    from elastic_core.train.entry import evaluates_each, model_and_evaluate
    from elastic_core.train.steps.evaluating import each_measured, measured

    seed_everything(spec.seed)
    entry = entry_points.load(spec.entry_point, settings.tasks)
    model, evaluate = model_and_evaluate(entry, spec)
    figures = evaluates_each(entry, spec) if each else None
    if model is None or (figures if each else evaluate) is None:
        return [] if each else {}
    store = open_for_job(settings.store_url(), settings.s3_endpoint, access)
    load_weights(model, read_weights(store, uri, sha256))
    return each_measured(figures, model) if each else measured(evaluate, model)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
