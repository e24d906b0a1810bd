"""`RayLauncher`: process groups over the nodes of a Ray cluster, from outside of it and over HTTP alone.

A group is a job of Ray whose submission id is its origin epoch, so that a second start finds the first. Ray is the
memory: this holds nothing, and any process with the cluster's token finds, watches and stops a group. A group whose
coordinator ended without a word is taken for alive until a job of its own (`group_end`) has ended what was left of it.
"""

from __future__ import annotations

import re
import shlex
import sys
import time
from collections.abc import Sequence

from elastic_core.errors import InfrastructureError, UserError
from elastic_core.host.detached import shared_secret
from elastic_core.launch.launcher import GroupStatus
from elastic_core.launch.local import WORKER
from elastic_core.launch.on_ray import journal
from elastic_core.launch.on_ray.jobs_api import JobsApi, RayJob, Submission, ray_token
from elastic_core.launch.on_ray.log_requests import NodeLog
from elastic_core.launch.on_ray.sealed_order import ORDER_VARIABLE, GroupLaunch, seal
from elastic_core.launch.worker_logs.kept import KeptLogs
from elastic_core.launch.worker_logs.parts import WorkerLog
from elastic_core.protocol.process_groups import ExitKind, ExitReport, LaunchOrder, ProcessGroup
from elastic_core.settings import Settings

COORDINATOR = "elastic_core.launch.on_ray.coordinator"
GROUP_END = "elastic_core.launch.on_ray.group_end"
_ENDS = "ends"  # of a job that ends a group: that group's job. Names alone may begin alike in other namespaces
_STOP_MARGIN = 60.0  # seconds past the grace before Ray kills a coordinator that was told to end
# What concerns the services' host alone, or is secret: it goes to no node.
_NOT_FOR_NODES = frozenset(
    {"home", "ledger_url", "airflow_db_url", "mlflow_db_url", "celery_broker_url", "mlflow_uri", "mlflow_certificate",
     "mlflow_key", "mlflow_ca", "ray_address", "ray_token_file", "ray_ca", "groups", "cluster", "predictors",
     "launcher"}
)  # fmt: skip


class RayLauncher:
    def __init__(self, settings: Settings, worker_command: Sequence[str] = WORKER) -> None:
        """Raises `UserError` for settings with which no group can run on Ray."""
        if settings.worker_user:
            raise UserError(
                f"ELASTIC_WORKER_USER is {settings.worker_user!r}, and with ELASTIC_LAUNCHER=ray workers run as "
                "whoever started Ray on their node: start Ray as an unprivileged user there, and unset it"
            )
        self.settings = settings
        self.worker_command = tuple(worker_command)
        self._api = JobsApi(settings)

    def start(self, order: LaunchOrder) -> GroupStatus:
        """As the contract says. Returns once Ray has the job; that no node can run it shows in `poll`."""
        name = self._name(order.origin_epoch)
        sealed = seal(self._launch(order), ray_token(self.settings), name)
        patience = self.settings.grace_seconds + _STOP_MARGIN
        self._api.submit(
            Submission(
                submission_id=name,
                entrypoint=_command(COORDINATOR, name),
                env={ORDER_VARIABLE: sealed, "RAY_JOB_STOP_WAIT_TIME_S": f"{patience:.0f}"},
                metadata={"segment": order.segment_id, "job": order.job_id},
                labels={"elastic.node": order.allocation.slots[0].node},
            )
        )
        status = self.poll(order.origin_epoch)
        if status is None:
            raise InfrastructureError(f"Ray took the job {name} of segment {order.segment_id} and does not know it now")
        return status

    def poll(self, origin_epoch: int) -> GroupStatus | None:
        job = self._api.job(self._name(origin_epoch))
        return None if job is None else self._status(origin_epoch, job)

    def groups(self) -> list[ProcessGroup]:
        """Every group of this installation that Ray knows of, until it is forgotten."""
        return [
            ProcessGroup(origin_epoch=epoch, segment_id=status.segment_id, alive=status.alive)
            for epoch, job in self._groups()
            if (status := self._status(epoch, job))
        ]

    def stop(self, origin_epoch: int, grace_seconds: float) -> None:
        """As the contract says, without waiting: a job of Ray tells every node's agent, which keeps the time.

        The coordinator is told as well, by Ray, with the grace of the settings: it may not have begun on some node yet.
        """
        job = self._api.job(self._name(origin_epoch))
        if job is None or job.ended:
            return
        self._end_by_job(job, f"stop-{grace_seconds * 1000:.0f}", origin_epoch, grace_seconds)
        self._api.stop(job.submission_id)

    def ranks_with_logs(self, origin_epoch: int) -> int:
        """As the contract says. What Ray has forgotten, nodes have kept the end of (`kept`)."""
        return len(self._log_urls(origin_epoch)) or self._kept_logs.ranks(origin_epoch)

    def log_of(self, origin_epoch: int, rank: int) -> WorkerLog | None:
        """As the contract says: it is read from the agent of the node on which that worker is, or was, else what was
        kept of it in the store."""
        urls, kept = self._log_urls(origin_epoch), self._kept_logs
        if rank < len(urls):
            return NodeLog(urls[rank], ray_token(self.settings), kept.log_of(origin_epoch, rank))
        return kept.log_of(origin_epoch, rank) if not urls and kept.keeps(origin_epoch, rank) else None

    def forget(self, origin_epoch: int) -> None:
        """Of a dead group: Ray's record of its job. The nodes removed its files when it ended, but for its logs."""
        job = self._api.job(self._name(origin_epoch))
        if job is not None and not self._alive(origin_epoch, job):
            self._delete(job)

    def remove_ended(self, before: float) -> int:
        """As the contract says, but for logs: they go with Ray's session on each node, and what nodes have kept of them
        goes by reconciliation (`kept`)."""
        old = [job for epoch, job in self._groups()
               if job.ended and (job.ended_at or before) < before and not self._alive(epoch, job)]  # fmt: skip
        for job in old:
            self._delete(job)
        return len(old)

    def _alive(self, origin_epoch: int, job: RayJob) -> bool:
        return self._status(origin_epoch, job).alive

    def _status(self, origin_epoch: int, job: RayJob) -> GroupStatus:
        report = self._exit(origin_epoch, job) if job.ended else None
        return GroupStatus(
            origin_epoch=origin_epoch, segment_id=job.metadata.get("segment", ""), alive=report is None, exit=report,
            ended_at=(job.ended_at or time.time()) if report else None, log_path=f"job {job.submission_id} of Ray",
        )  # fmt: skip

    def _exit(self, origin_epoch: int, job: RayJob) -> ExitReport | None:
        """What became of a group whose coordinator has ended; None while something of it may be left."""
        said = journal.exit_report(self._api.output(job.submission_id))
        if said is not None:
            return said
        name = f"{job.submission_id}-end"
        ending = self._api.job(name)
        if ending is None or not ending.ended:
            self._end_by_job(job, "end", origin_epoch, 0.0, "--forget", f"{self.settings.lease_seconds:g}")
            return None
        found = journal.exit_report(self._api.output(name))
        if found is None:  # it did not come to its end: another one tries
            self._api.delete(name)
            return None
        if found.kind is not ExitKind.INFRASTRUCTURE:
            return found
        why = f"the coordinator of the group ended without a word ({job.status}: {job.message.strip()[:300]})"
        return ExitReport(kind=found.kind, error=f"{why}; {found.error}".rstrip("; "), exit_codes=found.exit_codes)

    def _end_by_job(self, job: RayJob, how: str, origin_epoch: int, grace_seconds: float, *more: str) -> None:
        name = f"{job.submission_id}-{how}"
        submission = Submission(
            submission_id=name,
            metadata={_ENDS: job.submission_id},
            entrypoint=_command(
                GROUP_END, "--namespace", self.settings.ray_namespace, "--epoch", str(origin_epoch), "--grace",
                f"{grace_seconds:g}", "--home", str(self.settings.node_home()), *more,
            ),
        )  # fmt: skip
        if not self._api.submit(submission):
            before = self._api.job(name)
            if before is not None and before.ended and how != "end":
                self._api.delete(name)
                self._api.submit(submission)

    def _delete(self, job: RayJob) -> None:
        """The jobs that ended it first: without its own it is not known any more."""
        for other in self._api.jobs():
            if other.ended and other.metadata.get(_ENDS) == job.submission_id:
                self._api.delete(other.submission_id)
        self._api.delete(job.submission_id)

    def _groups(self) -> list[tuple[int, RayJob]]:
        name = re.compile(rf"{re.escape(self.settings.ray_namespace)}-([0-9]+)")
        found = ((name.fullmatch(job.submission_id), job) for job in self._api.jobs())
        return sorted(((int(match[1]), job) for match, job in found if match), key=lambda known: known[0])

    @property
    def _kept_logs(self) -> KeptLogs:
        return KeptLogs.of(self.settings)

    def _log_urls(self, origin_epoch: int) -> list[str]:
        return journal.log_urls(self._api.output(self._name(origin_epoch)))

    def _name(self, origin_epoch: int) -> str:
        return f"{self.settings.ray_namespace}-{origin_epoch}"

    def _launch(self, order: LaunchOrder) -> GroupLaunch:
        settings = self.settings
        values = settings.model_dump(mode="json", exclude=set(_NOT_FOR_NODES)) | {
            "project": str(settings.project.absolute()),
            "store": settings.store_url(),
            "control_url": settings.api_url(),
            "ray_node_home": str(settings.node_home()),
        }
        secret = shared_secret(settings.secret_file("memory")).decode() if settings.node_memory_mb else ""
        return GroupLaunch(
            order=order, settings=values, worker_command=self.worker_command, memory_secret=secret
        )  # fmt: skip


def _command(module: str, *arguments: str) -> str:
    """The Jobs API takes a line for a shell, so every word is quoted."""
    return shlex.join([sys.executable, "-m", module, *arguments])
