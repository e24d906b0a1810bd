"""Starting and ending the access broker of this home, and the grants of what it starts.

Where the store is no S3 store there is nothing to broker: `prepare` does nothing, and processes open the store by
themselves.
"""

from __future__ import annotations

import json
import os
import secrets
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path

from elastic_core.errors import InfrastructureError
from elastic_core.host.detached import shared_secret
from elastic_core.host.environment import allowed
from elastic_core.host.messages import AccessBrokerProcess
from elastic_core.host.process import ProcessId, end_processes
from elastic_core.host.rundir import RunDir
from elastic_core.host.worker_user.identity import uid_of_jobs
from elastic_core.protocol.process_groups import LaunchOrder
from elastic_core.settings import Settings
from elastic_core.state.store_access.store_grants import StoreAccess, StoreGrant
from elastic_core.state.stores.paths import CheckpointPath

ACCESS_BROKER = (sys.executable, "-m", "elastic_core.state.store_access.access_broker")
START_SECONDS = 60.0
END_SECONDS = 5.0


def is_needed(settings: Settings) -> bool:
    return settings.store_url().startswith("s3://")


def folder_of(settings: Settings) -> Path:
    return settings.home.absolute() / "store-access"


def prepare(settings: Settings, order: LaunchOrder, run_dir: RunDir) -> None:
    """Write store.json for this order's processes, and have a broker. Raises `InfrastructureError` without one."""
    if is_needed(settings):
        run_dir.write(StoreAccess.of(_secret(settings), grant_of(order)))
        start(settings)


def grant_of(order: LaunchOrder) -> StoreGrant:
    """The job's own folder; of others the one checkpoint whose weights it starts from, or that it is a fork of."""
    others = (order.warm_start or "", *(one.uri for one in order.restore.candidates if one.job_id != order.job_id))
    read = tuple(uri for uri in others if CheckpointPath.of_job(uri) is not None)  # else the restore says what is wrong
    return StoreGrant(who=f"job {order.job_id}", write=(order.job_id,), read=read, origin_epoch=order.origin_epoch)


def start(settings: Settings, environ: Mapping[str, str] = os.environ) -> None:
    """Start the broker of this home unless it runs, with the store's credentials of this process or of `environ`.

    Returns when it can be reached. Raises `InfrastructureError` when that does not come about.
    """
    folder = folder_of(settings)
    if not is_needed(settings) or _running(folder):
        return
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    _secret(settings)  # which it reads
    own = {name: value for name, value in environ.items() if name.startswith("AWS_")}
    options = {
        "--url": settings.store_url(),
        "--endpoint": settings.s3_endpoint,
        "--secret": str(settings.secret_file("store-access")),
        "--folder": str(folder),
        "--home": str(settings.home.absolute()),
        "--worker-uid": str(uid_of_jobs(settings)),
    }
    log = folder / "access-broker.log"
    with log.open("ab") as output:
        starting = subprocess.Popen(
            [*ACCESS_BROKER, *(word for option in options.items() for word in option)],
            stdin=subprocess.PIPE, stdout=output, stderr=output, env=allowed(environ),
            cwd=settings.project.absolute(), start_new_session=True,
        )  # fmt: skip
        try:
            starting.communicate(json.dumps(own).encode(), START_SECONDS)
        except subprocess.TimeoutExpired:
            starting.kill()
            starting.wait()
    if not _running(folder):
        raise InfrastructureError(
            f"jobs have no access to {settings.store_url()}: the process that signs their requests did not start; "
            f"{log} says why"
        )


def stop(settings: Settings) -> None:
    process = _process(folder_of(settings))
    if process is not None:
        end_processes([process], END_SECONDS)


@contextmanager
def serving(settings: Settings, grant: StoreGrant) -> Iterator[StoreAccess | None]:
    """Access for a process that the caller waits for, from a broker in this process; None where none is needed."""
    if not is_needed(settings):
        yield None
        return
    from elastic_core.state.store_access.access_broker import AccessBroker
    from elastic_core.state.stores.s3_signing import RequestSigner  # loads boto3

    secret = secrets.token_bytes(32)
    signer = RequestSigner(settings.store_url(), settings.s3_endpoint)
    with closing(AccessBroker(signer, secret, settings.home, uid_of_jobs(settings))):
        yield StoreAccess.of(secret, grant)


def _secret(settings: Settings) -> bytes:
    return shared_secret(settings.secret_file("store-access"))


def _process(folder: Path) -> ProcessId | None:
    recorded = RunDir(folder).read(AccessBrokerProcess)
    return recorded.process if recorded else None


def _running(folder: Path) -> bool:
    process = _process(folder)
    return process is not None and process.alive()
