"""A job's code is pinned when its first segment starts: it is put into the store, and the ledger says which it is.

Every process group of the job is given it then, whichever node it runs on and whatever has become of the project's
folder. A job that had ended and is opened again has its code pinned anew: that is how a mistake in it is mended.
"""

from __future__ import annotations

import logging
import shutil
from dataclasses import replace
from pathlib import Path

from elastic_core.errors import InfrastructureError, UserError
from elastic_core.protocol.process_groups import CODE, LaunchOrder, PinnedCode
from elastic_core.protocol.service import JobControl
from elastic_core.settings import MOST_CODE_MB, Settings
from elastic_core.state.job_code import bundle
from elastic_core.state.stores.paths import CODE_FOLDER
from elastic_core.state.stores.store import CheckpointStore
from elastic_core.state.stores.store_urls import open_store

_log = logging.getLogger(__name__)


def pin(control: JobControl, settings: Settings, order: LaunchOrder) -> LaunchOrder:
    """The order with the job's code: pinned now, unless it was before, or nothing is to be.

    Code that cannot be pinned is said to be so, and runs as each node has it.
    """
    if order.code or settings.code_mb == 0:
        return order
    try:
        code = bundle.collect(order.spec.entry_point, settings.project, _most(settings))
    except UserError as too_large:
        control.record_results(order.job_id, {CODE: PinnedCode(unpinned=str(too_large)).to_plain()})
        _log.warning("not pinned: %s", too_large)
        return order
    if not code.files:
        return order
    _put(_store(settings), code)
    found = PinnedCode(sha256=code.sha256, packages=code.packages, files=len(code.files), size_bytes=code.num_bytes)
    control.record_results(order.job_id, {CODE: found.to_plain()})
    return replace(order, code=code.sha256)


def fetch(settings: Settings, sha256: str, folder: Path) -> Path | None:
    """Have pinned code in this folder, and give it; None where nothing is pinned ("").

    What was pinned is fetched whatever `code_mb` is by now.

    Raises `InfrastructureError` where the store does not have it as it was pinned.
    """
    if not sha256:
        return None
    try:
        content = _store(settings).get(_key(sha256))
    except FileNotFoundError as error:
        raise InfrastructureError(
            f"the store {settings.store_url()} lacks {_key(sha256)}, the code that the job was begun with: restore it, "
            "or cancel and revive the job, which then runs the code as it is now"
        ) from error
    shutil.rmtree(folder, ignore_errors=True)
    bundle.write(bundle.unpack(content, sha256, MOST_CODE_MB * 2**20), folder)
    return folder


def _put(store: CheckpointStore, code: bundle.JobCode) -> None:
    """Code of many jobs is there once; one that is there was written whole."""
    if store.size(_key(code.sha256)) is None:
        store.put(_key(code.sha256), bundle.pack(code))


def _store(settings: Settings) -> CheckpointStore:
    return open_store(settings.store_url(), endpoint=settings.s3_endpoint)


def _key(sha256: str) -> str:
    return f"{CODE_FOLDER}/{sha256}.zip"


def _most(settings: Settings) -> int:
    return settings.code_mb * 2**20
