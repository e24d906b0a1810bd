"""Jobs over CPUs and GPUs: workers on GPUs, parameter servers on CPU cores. The second kind of job of the simulator.

The product's runtime gives workers and servers a slot each (`ServedPhysics`); jobs whose workers share GPUs, and whose
servers have cores, are here to judge AITurbo (HPDC 2021) and its rivals on the ground that they were made for. A step
with w workers and p servers takes, as in Optimus (EuroSys 2018, section 3.2), with a GPU's share and a server's cores
as AITurbo measured them:

    (forward * batch / w + backward) * slowdown(GPU a worker)
    + (exchange * w / p + update / p) * slowdown(cores a server) + per_worker * w + per_server * p
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import exp
from typing import Protocol, runtime_checkable

from elastic_core.domain import Layout, Roles
from elastic_core.errors import UserError
from elastic_core.sim.ground_truth.physics import Nodes, Physics

# The published curves fall below nothing outside what was measured: a server's speed is at least this share of its
# best, the time on a whole GPU at least this share of that on a hundredth of one.
_LEAST_SPEED, _LEAST_TIME = 0.05, 0.01


@runtime_checkable
class RolePhysics(Physics, Protocol):
    """The truth about a job whose processes have roles."""

    def role_seconds(self, counts: Mapping[str, int], roles: Roles, batch: int) -> tuple[float, float]:
        """(one step at a global batch, the part of it in which the GPUs wait)."""


@runtime_checkable
class ServedPhysics(Physics, Protocol):
    """The truth about a job that the runtime may train with parameter servers."""

    def served_seconds(self, kind: str, num_nodes: int, layout: Layout, batch: int) -> tuple[float, float]:
        """(one step at a global batch with the workers on slots of this type, the part of it in which they wait)."""


@dataclass(frozen=True, slots=True)
class CpuEfficiency:
    """Speed of a process on x cores, a exp(-b x) + d; only its ratios matter."""

    a: float
    b: float
    d: float

    def slowdown(self, cores: float, reference: float) -> float:
        """Time on so many cores a process, relative to the reference."""
        return self._at(reference) / self._at(cores)

    def _at(self, cores: float) -> float:
        return max(self.a * exp(-self.b * cores) + self.d, _LEAST_SPEED * self.d)


@dataclass(frozen=True, slots=True)
class GpuShare:
    """Time of a pass on u % of a GPU, b0 / (b1 + u) + b2; only its ratios matter."""

    b0: float
    b1: float
    b2: float

    def slowdown(self, percent: float) -> float:
        """Relative to a whole GPU; a smaller share is never faster."""
        whole = max(self._at(100.0), _LEAST_TIME * self._at(1.0))
        return max(1.0, self._at(percent) / whole)

    def _at(self, percent: float) -> float:
        return self.b0 / (self.b1 + percent) + self.b2


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerPhysics:
    """Work is in samples at the batch that the user asked for, which no policy changes: every sample counts the same.

    The times are those with a whole GPU a worker and `reference_cores` a server.
    """

    base_batch: int
    work: float
    forward: float  # seconds a sample
    backward: float
    exchange: float
    update: float
    per_worker: float
    per_server: float
    server_cpu: CpuEfficiency
    forward_share: GpuShare
    backward_share: GpuShare
    worker_cores: int = 5
    reference_cores: float = 5.0
    rescale_seconds: float = 10.0

    @property
    def epoch_ends(self) -> Sequence[float]:
        return (self.work,)

    def max_local(self, kind: str, nodes: Nodes) -> int:  # noqa: ARG002 - the batch is given, whatever it is run on
        return 10**9

    def gradient(self, batch: int, epoch: int) -> tuple[float, float] | None:  # noqa: ARG002 - none was measured
        return None

    def seconds(self, kind: str, nodes: Nodes, local: int, accumulation: int) -> tuple[float, float]:
        raise UserError(
            f"a job over parameter servers cannot run on {sum(nodes)} plain slots of {kind} (local batch {local} x "
            f"{accumulation}): its target needs roles; a policy that knows none is run through `with_servers`"
        )

    def role_seconds(self, counts: Mapping[str, int], roles: Roles, batch: int) -> tuple[float, float]:
        workers, servers = dict(roles)["worker"], dict(roles)["server"]
        percent = 100.0 * counts["gpu"] / workers
        compute = self.forward * batch / workers * self.forward_share.slowdown(percent)
        compute += self.backward * self.backward_share.slowdown(percent)
        slowdown = self.server_cpu.slowdown(server_cores(counts, roles, self.worker_cores), self.reference_cores)
        waiting = (self.exchange * workers + self.update) / servers * slowdown
        waiting += self.per_worker * workers + self.per_server * servers
        return compute + waiting, waiting


def server_cores(counts: Mapping[str, int], roles: Roles, worker_cores: int) -> float:
    """Cores of each parameter server: they share what the workers leave."""
    processes = dict(roles)
    return (counts["cpu"] - worker_cores * processes["worker"]) / processes["server"]
