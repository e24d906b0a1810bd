"""Gradients summed over the replicas of a part of the model, in buckets of one type: on CPU in the order of ranks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
import torch.distributed as dist
from torch import Tensor

from elastic_core.comm.allreduce import OrderedAllReduce

_BUCKET_BYTES = 25 << 20


class BucketedSum:
    """Over the ranks of a group."""

    def __init__(self, group: dist.ProcessGroup | None) -> None:
        self._group = group
        self._ordered = OrderedAllReduce(group)

    def reduce(self, grads: Sequence[Tensor]) -> None:
        for bucket in _buckets(grads):
            flat = torch.cat([grad.reshape(-1) for grad in bucket])
            if flat.device.type == "cpu":
                flat = self._ordered.reduce(flat)
            else:
                dist.all_reduce(flat, group=self._group)
            for grad, part in zip(bucket, torch.split(flat, [grad.numel() for grad in bucket]), strict=True):
                grad.copy_(part.view(grad.shape))


def _buckets(grads: Sequence[Tensor]) -> Iterator[list[Tensor]]:
    bucket: list[Tensor] = []
    for grad in grads:
        size = sum(member.numel() * member.element_size() for member in bucket)
        if bucket and (grad.dtype != bucket[0].dtype or size >= _BUCKET_BYTES):
            yield bucket
            bucket = []
        bucket.append(grad)
    if bucket:
        yield bucket
