"""The pool that a Ray cluster is, as seen from outside, over HTTP alone: what the job `pool_watch` has said last."""

from __future__ import annotations

import shlex
import sys
import time
from dataclasses import dataclass, field

from pydantic import ValidationError

from elastic_core.domain.json_values import first_problems, from_json
from elastic_core.errors import InfrastructureError
from elastic_core.launch.on_ray import journal
from elastic_core.launch.on_ray.jobs_api import JobsApi, Submission
from elastic_core.settings import Settings
from elastic_core.spec import NodeSpec

POOL_WATCH = "elastic_core.launch.on_ray.pool.pool_watch"
POLL_SECONDS = 0.5


@dataclass(frozen=True, slots=True)
class RayPool:
    nodes: tuple[NodeSpec, ...]
    draining: tuple[str, ...]
    unclean: dict[str, str]  # nodes that are there and get no work yet, with why
    mislabelled: dict[str, str] = field(default_factory=dict)  # those that will never be of it as they are, with why
    deadlines: dict[str, float] = field(default_factory=dict)  # until when draining ones are there, Unix seconds

    def left_out(self) -> dict[str, str]:
        """Every node that is there and gets no work, with why."""
        return {**self.mislabelled, **self.unclean}


class PoolReports:
    def __init__(self, settings: Settings, api: JobsApi | None = None) -> None:
        """Raises as `JobsApi`."""
        self._settings, self._api = settings, api or JobsApi(settings)
        self._name = f"{settings.ray_namespace}-pool"

    def newest(self) -> RayPool | None:
        """None while nothing was said yet. Has the job run, if it does not."""
        job = self._api.job(self._name)
        if job is not None and job.ended:
            self._api.delete(self._name)
            job = None
        if job is None:
            words = ["-m", POOL_WATCH, "--namespace", self._settings.ray_namespace]
            words += ["--home", str(self._settings.node_home())]
            self._api.submit(Submission(submission_id=self._name, entrypoint=shlex.join([sys.executable, *words])))
            return None
        return self._said()

    def known(self) -> RayPool | None:
        """As `newest`, and starts nothing: None also where the job does not run."""
        job = self._api.job(self._name)
        return None if job is None or job.ended else self._said()

    def _said(self) -> RayPool | None:
        said = journal.last(self._api.output(self._name), "pool")
        if said is None:
            return None
        try:
            return from_json(RayPool, said)
        except ValidationError as error:
            raise InfrastructureError(
                f"what {self._name} said last is no pool ({first_problems(error)}): somebody wrote into its output. "
                "Stop that job of Ray (`ray job stop`); another one is started then"
            ) from None

    def first(self, seconds: float) -> RayPool:
        """With a node in it. Raises `InfrastructureError` where that does not come about in time."""
        until, pool = time.monotonic() + seconds, None
        while time.monotonic() < until:
            pool = self.newest()
            if pool is not None and pool.nodes:
                return pool
            time.sleep(POLL_SECONDS)
        seen = f"; there are: {pool.left_out()}" if pool is not None and pool.left_out() else ""
        raise InfrastructureError(
            f"no node of the Ray cluster is in the pool after {seconds:g} s{seen}. Start one with "
            "--labels=elastic.node=NAME and --resources='{\"slot:TYPE\": COUNT}'"
        )
