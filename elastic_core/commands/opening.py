"""What commands open: the checkpoint that a user names, the control API."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from elastic_core.client import connect
from elastic_core.domain import JobState
from elastic_core.errors import ElasticError
from elastic_core.protocol.callers import Caller, NoDirectory, OnBehalf, Way, at_host, caller_of
from elastic_core.protocol.http_client import HttpControl
from elastic_core.settings import Settings
from elastic_core.state.stores.paths import MANIFEST
from elastic_core.state.stores.store_urls import open_store

if TYPE_CHECKING:  # torch takes seconds to import: each command brings it when it needs it
    from elastic_core.state.format.manifest import Manifest
    from elastic_core.state.stores.store import CheckpointStore

Store = Annotated[str, typer.Option(help="folder or s3://bucket/prefix that the uri is below; the configured store")]
Sha256 = Annotated[str, typer.Option(help="the manifest's SHA-256, as the ledger holds it")]


def locate(uri: str, store: str) -> tuple[CheckpointStore, str]:
    """The store that holds a checkpoint, and its uri in there."""
    settings = Settings()
    folder = Path(uri)
    if uri.startswith("s3://"):
        above, _, name = uri.rstrip("/").rpartition("/")
        return open_store(above, endpoint=settings.s3_endpoint), name
    if not store and (folder / MANIFEST).is_file():
        return open_store(str(folder.resolve().parent)), folder.resolve().name
    return open_store(store or settings.store_url(), endpoint=settings.s3_endpoint), uri


def open_checkpoint(uri: str, store: str, sha256: str) -> tuple[CheckpointStore, Manifest]:
    from elastic_core.state.format.manifest import read_manifest

    place, relative = locate(uri, store)
    return place, read_manifest(place, relative, sha256 or None)


def complete_job(incomplete: str) -> list[str]:
    """Ids of jobs, the active ones first, for a shell's completion; none where the platform does not answer."""
    try:
        jobs = connect(Settings(), patience_seconds=0.0).jobs()
    except ElasticError:
        return []
    by_need = sorted(jobs, key=lambda job: job.state is not JobState.ACTIVE)
    return [job.job_id for job in by_need if job.job_id.startswith(incomplete)]


JobId = Annotated[str, typer.Argument(metavar="JOB", autocompletion=complete_job)]
JobIds = Annotated[list[str], typer.Argument(metavar="JOB...", autocompletion=complete_job)]
As = Annotated[str, typer.Option("--as", help="a user of Airflow: with their rights, and in their name")]


def open_api(settings: Settings, user: str = "") -> HttpControl:
    """The control API, with the service secret: for the operator, or for a user. Raises `InfrastructureError` where
    there is none."""
    on_behalf = OnBehalf(way=Way.CLI, user=user) if user else at_host(Way.CLI)
    return connect(settings).acting(on_behalf)


def operator() -> Caller:
    """The person at the host, for commands that open the ledger themselves: with all rights, and on record."""
    return caller_of(at_host(Way.CLI), NoDirectory())
