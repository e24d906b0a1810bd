"""Names of checkpoint directories in a store (`<job>/lineage-<l>/step-<step>-epoch-<epoch>-<nonce>`) and manifests, and
what lies beside the jobs' folders.

Written by `state.format`, parsed by whoever lists a store. Stored, hence fixed. Needs no torch.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from elastic_core.state.stores.keys import is_key

MANIFEST = "manifest.json"
CODE_FOLDER = "code"  # folder of all jobs' pinned code (`state.job_code`)
RESERVED = frozenset({CODE_FOLDER})  # top-level folders of a store that are no job's, so that no job has such an id

_URI = re.compile(r"(?P<job>.+)/lineage-(?P<lineage>\d+)/step-(?P<step>\d{10,})-epoch-(?P<epoch>\d+)-(?P<nonce>[^/-]+)")
_NONCE = re.compile(r"[0-9A-Za-z]{1,64}")  # a longer one may be no name of a file


@dataclass(frozen=True, slots=True)
class CheckpointPath:
    """The parts of a checkpoint's directory. The nonce keeps a fenced writer and its successor apart."""

    job_id: str
    lineage: int
    step: int
    epoch: int
    nonce: str

    @property
    def uri(self) -> str:
        """The directory, relative to the store."""
        return f"{self.job_id}/lineage-{self.lineage}/step-{self.step:010d}-epoch-{self.epoch}-{self.nonce}"

    @property
    def is_writers(self) -> bool:
        """Whether a writer may have made the name: its nonce can be part of a key of every store."""
        return _NONCE.fullmatch(self.nonce) is not None

    @staticmethod
    def parse(uri: str) -> CheckpointPath | None:
        """None for a directory that is no checkpoint's."""
        match = _URI.fullmatch(uri)
        if match is None:
            return None
        return CheckpointPath(
            match["job"], int(match["lineage"]), int(match["step"]), int(match["epoch"]), match["nonce"]
        )

    @staticmethod
    def of_job(uri: str) -> CheckpointPath | None:
        """As `parse`, of what lies in a job's own folder: None for what is no key of a store, or further down."""
        path = CheckpointPath.parse(uri)
        return path if path is not None and "/" not in path.job_id and is_key(uri) else None
