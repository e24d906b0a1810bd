"""What the ledger knows of registered versions: which job made one, from which checkpoint, with which metrics.

MLflow's tags say it as well, and can be set by whoever can write to MLflow: nothing here asks them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from elastic_core.protocol.encoding import numbers
from elastic_core.protocol.process_groups import held_out
from elastic_core.protocol.records import REGISTERED_VERSIONS, JobStatus, registered_key
from elastic_core.protocol.service import JobRecords
from elastic_core.track.champions.judging import RegisteredVersion


def registered_version(control: JobRecords, name: str, version: str) -> RegisteredVersion:
    """Whoever registered it; of a version that no job did only name and number are known."""
    claimants = control.jobs_that_registered(name, version)
    if not claimants:
        return RegisteredVersion(name=name, version=version)
    latest = max(claimants, key=lambda job: _entry(job, name, version).get("at", 0.0))
    return described(control, latest, name, version)


def described(control: JobRecords, job: JobStatus, name: str, version: str) -> RegisteredVersion:
    """The version, which this job registered."""
    entry = _entry(job, name, version)
    checkpoint = next((c for c in control.checkpoints(job.job_id) if c.uri == entry["uri"]), None)
    return RegisteredVersion(
        name=name,
        version=version,
        job_id=job.job_id,
        step=checkpoint.step if checkpoint else 0,
        checkpoint_uri=entry["uri"],
        manifest_sha256=checkpoint.manifest_sha256 if checkpoint else "",
        metrics=numbers(entry["metrics"]),
    )


def _entry(job: JobStatus, name: str, version: str) -> Mapping[str, Any]:
    """What the ledger holds of a version that this job registered."""
    entry: Mapping[str, Any] | None = job.results.get(REGISTERED_VERSIONS, {}).get(registered_key(name, version))
    if entry is None:  # registered by a release that kept the last version of a job only
        entry = {"uri": job.results.get("registered_checkpoint", ""), "metrics": held_out(job.results)}
    return entry
