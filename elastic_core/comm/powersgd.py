"""PowerSGD: of each matrix of gradients a product of two thin ones (Vogels et al. 2019, arXiv 1905.13727, algorithm 1).

Per matrix M (n x m, a gradient with what compression left out before): P = sum over ranks of M Q, made orthonormal;
Q = sum over ranks of M^T P, where the next step's begins; the sum of the gradients is taken to be P Q^T. What a rank's
M has beside that, M - P P^T M, is its error, which it adds to its next gradient: over ranks the errors are what the sum
left out, so that nothing is lost for good. Vectors, and matrices that two thin ones would not make half as small, are
summed exactly.

What a matrix becomes depends on its values and on the state alone: with the state from the checkpoint a resumed run
gives the bits of an undisturbed one at the same number of ranks.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from math import isqrt
from typing import ClassVar

import torch
import torch.distributed as dist
from torch import Tensor

from elastic_core.comm.allreduce import OrderedAllReduce, traffic_of_sum
from elastic_core.comm.hooked import Bucket, HookedAlgorithm
from elastic_core.comm.traffic import Traffic

RANK = 4  # columns of P and Q
_ERROR, _FACTOR = "error/", "factor/"


class PowerSgd(HookedAlgorithm):
    """gloo. Its state is of this rank, by names of parameters: errors, and Q, which is alike on all ranks."""

    name: ClassVar[str] = "powersgd"

    def __init__(self, group: dist.ProcessGroup | None = None) -> None:
        super().__init__(group)
        self._exact = OrderedAllReduce(group)
        self._errors: dict[str, Tensor] = {}  # (n, m)
        self._factors: dict[str, Tensor] = {}  # Q, (m, RANK)

    @classmethod
    def traffic(cls, shapes: Sequence[torch.Size], world: int) -> Traffic:
        thin = [shape for shape in shapes if compresses(shape)]
        columns = RANK * sum(shape.numel() // shape[0] for shape in thin)
        rows = RANK * sum(shape[0] for shape in thin)
        whole = sum(shape.numel() for shape in shapes if not compresses(shape))
        first = traffic_of_sum(whole + rows, world)
        return first + traffic_of_sum(columns, world) if thin else first

    @classmethod
    def rehearse(cls, values: Tensor) -> None:
        side = isqrt(values.numel())
        matrix = values.clone().view(side, side)
        basis = torch.linalg.qr(matrix @ matrix[:, :RANK]).Q
        factor = matrix.T @ basis
        matrix.addmm_(basis, factor.T, alpha=-1)
        values.view(side, side).copy_(basis @ factor.T)

    def reduce(self, buffer: Tensor) -> Tensor:
        """Without parameters there are no matrices: the exact sum."""
        return self._exact.reduce(buffer)

    def reduce_bucket(self, bucket: Bucket) -> Tensor:
        thin = {name: grad for name, grad in bucket.gradients.items() if compresses(grad.shape)}
        whole = [grad for name, grad in bucket.gradients.items() if name not in thin]
        matrices = {name: self._with_error(name, grad) for name, grad in thin.items()}
        products = [matrix @ self._factor(name, matrix) for name, matrix in matrices.items()]
        self._sum([*whole, *products])
        bases = [torch.linalg.qr(product).Q for product in products]
        factors = [matrix.T @ basis for matrix, basis in zip(matrices.values(), bases, strict=True)]
        for (name, matrix), basis, factor in zip(matrices.items(), bases, factors, strict=True):
            self._errors[name] = matrix.addmm_(basis, factor.T, alpha=-1)
        self._sum(factors)
        for (name, grad), product, basis, factor in zip(thin.items(), products, bases, factors, strict=True):
            if bool(product.isfinite().all()) and bool(factor.isfinite().all()):
                self._factors[name] = factor
                grad.copy_((basis @ factor.T).view_as(grad))
            else:  # on every rank alike; kept, it would spoil every step from now on
                del self._errors[name], self._factors[name]
                grad.fill_(torch.nan)
        return bucket.buffer

    def state_dict(self) -> dict[str, Tensor]:
        errors = {_ERROR + name: error for name, error in self._errors.items()}
        return errors | {_FACTOR + name: factor for name, factor in self._factors.items()}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        self._errors = _clones(state, _ERROR)
        self._factors = _clones(state, _FACTOR)

    def _with_error(self, name: str, grad: Tensor) -> Tensor:
        """M of one parameter, in single precision at least; no view of the gradient."""
        matrix = grad.reshape(grad.shape[0], -1).to(torch.promote_types(grad.dtype, torch.float32), copy=True)
        return matrix.add_(self._errors[name].to(matrix.device)) if name in self._errors else matrix

    def _factor(self, name: str, matrix: Tensor) -> Tensor:
        """Q of the step before; at first random numbers, the same on every rank."""
        if name not in self._factors:
            generator = torch.Generator().manual_seed(zlib.crc32(name.encode()))
            self._factors[name] = torch.randn(matrix.shape[1], RANK, generator=generator).to(matrix.dtype)
        return self._factors[name].to(matrix.device)

    def _sum(self, tensors: list[Tensor]) -> None:
        """Over ranks, in place, in one exchange a dtype."""
        for dtype in dict.fromkeys(tensor.dtype for tensor in tensors):
            of_dtype = [tensor for tensor in tensors if tensor.dtype == dtype]
            flat = self._exact.reduce(torch.cat([tensor.reshape(-1) for tensor in of_dtype]))
            parts = torch.split(flat, [tensor.numel() for tensor in of_dtype])
            for tensor, part in zip(of_dtype, parts, strict=True):
                tensor.copy_(part.view_as(tensor))


def compresses(shape: torch.Size) -> bool:
    """Whether two thin matrices make this gradient at most half as large."""
    if len(shape) < 2 or not shape.numel():
        return False
    rows, columns = shape[0], shape.numel() // shape[0]
    return 2 * RANK * (rows + columns) <= rows * columns


def _clones(state: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): value.clone() for name, value in state.items() if name.startswith(prefix)}
