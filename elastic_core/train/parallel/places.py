"""Where each rank of a layout stands: its coordinates on one device mesh, and what it answers for.

Ranks lie on the mesh in row-major order over (pipeline, data, tensor), as the slots of an allocation are sorted by
node: ranks of one tensor-parallel group are neighbours, stages are far apart. All ranks of one replica of the model
(one data coordinate) read the same samples; one of them counts them, and one knows their loss.
"""

from __future__ import annotations

import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from elastic_core.domain import Layout
from elastic_core.errors import InfrastructureError
from elastic_core.state.layout.layout import AXES, DATA, PIPELINE, TENSOR, Mesh
from elastic_core.train.parallel.group import Group, communicating
from elastic_core.train.parallel.strangers import closed_afterwards


class Places:
    """One rank's place. `mesh` is None where plain data-parallel replicas need none: DDP works over the whole group."""

    serves = False  # it is a parameter server, and reads no sample

    def __init__(self, group: Group, layout: Layout) -> None:
        """Collective. Raises `InfrastructureError` for a layout of another size than the group."""
        if layout.world_size != group.world:
            raise InfrastructureError(f"The layout {layout} is for {layout.world_size} ranks; {group.world} run.")
        self.layout, self.rank = layout, group.rank
        self.replicated = layout.model_size == 1 and not (layout.sharded and layout.data > 1)
        where = Mesh.of(layout).coordinates(group.rank)
        self.stage, self.data, self.tensor = where[PIPELINE], where[DATA], where[TENSOR]
        self.mesh: DeviceMesh | None = None
        if not self.replicated:
            with communicating("the forming of the device mesh"), closed_afterwards(group.address):
                sizes = (layout.pipeline, layout.data, layout.tensor)
                self.mesh = init_device_mesh(group.device.type, sizes, mesh_dim_names=AXES)
                for axis in AXES:
                    group.prove(f"the ranks along {axis}", self.mesh.get_group(axis))

    @property
    def sharded(self) -> bool:
        return self.layout.sharded and self.layout.data > 1

    @property
    def num_stages(self) -> int:
        return self.layout.pipeline

    @property
    def takes_whole_steps(self) -> bool:
        """A loop over micro-batches cannot run its part of a step."""
        return self.num_stages > 1

    @property
    def first_stage(self) -> bool:
        return self.stage == 0

    @property
    def last_stage(self) -> bool:
        return self.stage == self.num_stages - 1

    @property
    def counts_samples(self) -> bool:
        """Of its replica's ranks, the one whose reads are the audit's."""
        return self.first_stage and self.tensor == 0

    @property
    def knows_loss(self) -> bool:
        """Of its replica's ranks, the one whose loss counts: in the last stage."""
        return self.last_stage and self.tensor == 0

    def along(self, axis: str) -> DeviceMesh:
        """The ranks that differ from this one on one axis only, as a mesh of one axis."""
        assert self.mesh is not None, "plain data-parallel replicas have no mesh"
        submesh: DeviceMesh = self.mesh[axis]
        return submesh

    def data_group(self) -> dist.ProcessGroup | None:
        """The ranks that hold the same part of the model; None for the whole group."""
        return None if self.mesh is None else self.mesh.get_group(DATA)


__all__ = ["DATA", "PIPELINE", "TENSOR", "Places"]
