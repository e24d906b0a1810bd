"""How checkpoints lie in a store: names of directories and of the manifest. Needs no torch."""

from __future__ import annotations

import re
from dataclasses import dataclass

MANIFEST = "manifest.json"

_URI = re.compile(r"(?P<job>.+)/lineage-(?P<lineage>\d+)/step-(?P<step>\d{10,})-epoch-(?P<epoch>\d+)-(?P<nonce>[^/-]+)")


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

    @staticmethod
    def parse(uri: str) -> CheckpointPath | None:
        """None for a directory that is no checkpoint's."""
        found = _URI.fullmatch(uri)
        if found is None:
            return None
        return CheckpointPath(
            found["job"], int(found["lineage"]), int(found["step"]), int(found["epoch"]), found["nonce"]
        )
