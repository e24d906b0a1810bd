"""Tensor-parallel styles that `torch.distributed.tensor.parallel` does not have.

`SumOfParts`: a module whose output is a sum over slices of its parameters (attention over its heads: Megatron-LM,
Shoeybi et al. 2019, section 3, arXiv 1909.08053). Each rank computes the part of its own slices; the parts are added
up. Slices may be uneven, and a rank may have none, so that any number of ranks can share any number of heads.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import ParallelStyle


class SumOfParts(ParallelStyle):
    """`dims`: of each parameter of the module, by its name, its partitioned dim. Every parameter has to be there.

    The module's forward works with what `layouts.local` gives, for any size of that dim, and gives one tensor: the sum
    over the slices. Its inputs are the same on every rank, and so is its output.
    """

    def __init__(self, dims: Mapping[str, int]) -> None:
        super().__init__()
        self._dims = dict(dims)

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        for name, parameter in dict(module.named_parameters(recurse=False)).items():
            placements = [Shard(self._dims[name])]
            part = distribute_tensor(parameter.data, device_mesh, placements, src_data_rank=self.src_data_rank)
            module.register_parameter(name, nn.Parameter(part, requires_grad=parameter.requires_grad))

        def enter(_module: nn.Module, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
            return tuple(_entering(value, device_mesh) for value in inputs)

        def leave(_module: nn.Module, _inputs: tuple[Any, ...], output: Tensor) -> Tensor:
            return (
                DTensor.from_local(output, device_mesh, [Partial()]).redistribute(placements=[Replicate()]).to_local()
            )

        module.register_forward_pre_hook(enter)
        module.register_forward_hook(leave)
        return module


def _entering(value: Any, mesh: DeviceMesh) -> Any:
    """Unchanged on the way in; on the way back the ranks' gradients are added up: each knows those of its part."""
    if not isinstance(value, Tensor) or not value.requires_grad:
        return value
    return DTensor.from_local(value, mesh, [Replicate()]).to_local(grad_placements=[Partial()])
