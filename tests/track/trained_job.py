"""A job with real checkpoints in a real store, for what is done with the models of ended jobs."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import nn

from elastic_core.domain import Layout
from elastic_core.protocol.callers import OnBehalf
from elastic_core.protocol.records import ChampionMoved, CheckpointRecord, JobStatus
from elastic_core.settings import Settings
from elastic_core.state.format.checkpoint_format import CheckpointHeader, checkpoint_uri, write_manifest, write_shard
from elastic_core.state.stores.store_urls import open_store
from elastic_core.track.champions.registry_champions import RegistryChampions
from examples.digits import Digits
from tests.track.story import SPEC, STATUS


@dataclass
class TrainedJob:
    """A job with real checkpoints in a real store; the part of `ServiceControl` that the registry asks."""

    settings: Settings
    name: str = field(default_factory=lambda: f"digits-{uuid.uuid4().hex[:8]}")
    records: list[CheckpointRecord] = field(default_factory=list)
    results: dict[str, Any] = field(default_factory=dict)
    entry_point: str = "examples.digits:Digits"
    params: Mapping[str, Any] = field(default_factory=lambda: {"width": 8})

    def checkpoint(
        self, step: int, seed: int = 0, bad: bool = False, model: nn.Module | None = None, **metrics: float
    ) -> nn.Module:
        """Of `model`, or of one that was never trained."""
        torch.manual_seed(seed)
        model = (model or Digits(Digits.Params(width=8)).model()).eval()
        store = open_store(self.settings.store_url())
        header = CheckpointHeader(job_id=self.name, step=step, samples=32 * step, epoch=1)
        uri = checkpoint_uri(header, f"n{step}")
        tensors = {f"model/{name}": tensor for name, tensor in model.state_dict().items()}
        tensors["optim/step"] = torch.tensor(step)
        written = write_manifest(store, uri, [write_shard(store, uri, 0, tensors)], header, {})
        self.records.append(
            CheckpointRecord(
                checkpoint_id=step, job_id=self.name, lineage=0, step=step, samples=32 * step, epoch=1,
                segment_id=f"{self.name}__seg_0", uri=uri, manifest_sha256=written.sha256,
                size_bytes=written.size_bytes, layout=Layout(), metrics=metrics, committed_at=1e9 + step, final=False,
                bad=bad,
            )
        )  # fmt: skip
        return model

    def job(self, job_id: str) -> JobStatus:
        update = {"name": self.name, "params": dict(self.params), "entry_point": self.entry_point}
        return replace(STATUS, job_id=self.name, spec=SPEC.model_copy(update=update), results=dict(self.results))

    def jobs_that_registered(self, model: str, version: str) -> list[JobStatus]:
        versions = {f"{self.results.get('registered_model')}/{self.results.get('registered_version')}"}
        versions |= set(self.results.get("registered_versions", {}))
        return [self.job(self.name)] if f"{model}/{version}" in versions else []

    def checkpoints(self, job_id: str) -> list[CheckpointRecord]:
        return self.records

    def acting(self, on_behalf: OnBehalf) -> TrainedJob:
        """Whoever it is: they may."""
        return self

    def promote(self, model: str, version: str, reason: str, instead_of: str | None) -> ChampionMoved:
        return RegistryChampions(self.settings).promote(model, version, instead_of)

    def record_results(self, job_id: str, results: Mapping[str, Any]) -> JobStatus:
        self.results.update(results)
        return self.job(job_id)
