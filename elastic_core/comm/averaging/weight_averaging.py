"""What the algorithms share that average weights: when they are called, and the exact average that makes one model.

Attached to an optimizer, an algorithm is called before and after each of its steps. In between, ranks have weights of
their own, and the optimizer's moments are always a rank's own. `settle` ends that: one exact average of weights and
moments. What comes after it depends on nothing before it but on what then is alike on all ranks and on `state_dict`,
which is alike too: so training that is taken up again from what was saved then, by any number of ranks, goes on as it
would have gone on.

Why moments are averaged (and neither kept by rank nor dropped): they are sums of gradients, and their mean is what one
optimizer would hold that had seen the mean gradients: exactly for SGD's momentum, nearly for Adam's second moment.
PyTorch's `PostLocalSGDOptimizer` and Local SGD (Stich 2019, arXiv 1805.09767; Lin et al. 2020, arXiv 1808.07217) leave
moments local between averages, as here.
"""

from __future__ import annotations

import itertools
import time
import zlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import ClassVar

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.optim import Optimizer

from elastic_core.comm.averaging.ordered_mean import average, flattened, put_back
from elastic_core.comm.hierarchy import Hierarchy
from elastic_core.comm.silence import in_time
from elastic_core.comm.traffic import Traffic
from elastic_core.errors import UserError

INTERVAL = 8  # optimizer steps


class WeightAveraging(ABC):
    """Over gloo, of tensors on the CPU or a CUDA device. Without any process group it is a group of one. Every rank
    steps equally often."""

    name: ClassVar[str]
    overlaps: ClassVar[bool] = False  # it exchanges while training computes, and needs a process group of its own
    at_intervals: ClassVar[bool] = True  # else it exchanges after every step
    hidden_steps: ClassVar[int | None] = 0  # that compute while it exchanges; None: it is never waited for

    def __init__(self, group: dist.ProcessGroup | None = None, interval: int = INTERVAL) -> None:
        formed = dist.is_initialized()
        self._group = group
        self._rank = dist.get_rank(group) if formed else 0
        self._world = dist.get_world_size(group) if formed else 1
        self._interval = interval
        self._hierarchy: Hierarchy | None = None
        self._parameters: dict[str, nn.Parameter] = {}  # those that are trained, by name
        self._apart = False  # steps were taken since ranks were alike
        self._wait_seconds = 0.0

    @property
    def in_force(self) -> str:
        return self.name

    def within(self, hierarchy: Hierarchy) -> None:
        """From now on what all ranks average is averaged within nodes first. Before `attach`."""
        self._hierarchy = hierarchy

    @classmethod
    def traffic(cls, shapes: Sequence[torch.Size], world: int) -> Traffic | None:  # noqa: ARG003 - of those that say
        """Of one exchange of single precision weights in these shapes. None: not to be chosen by measurement, since
        what a few intervals under it leave behind is more than `settle` can end."""
        return None

    @classmethod
    def rehearse(cls, values: Tensor) -> None:
        """What an exchange of so many weights computes, once, so that it can be timed. values: float32 (n), n a
        square; may be changed."""
        put_back(flattened([values]).div_(2), [values])

    def attach(self, model: nn.Module, optimizer: Optimizer, alike: bool = False) -> None:
        """Rank 0's weights and buffers become everybody's, unless they are `alike` already; from now on
        `optimizer.step` averages. Collective, once.

        Gradients must be those of the mean loss over the rank's own samples.
        """
        if self._world > 1 and not alike:
            for tensor in itertools.chain(model.parameters(), model.buffers()):
                dist.broadcast(tensor.detach(), group=self._group, group_src=0)
        self._parameters = {name: p for name, p in model.named_parameters() if p.requires_grad}
        self._optimizer = optimizer
        self._begin()
        self._hooks = (
            optimizer.register_step_pre_hook(lambda *_: self._timed(self._before_step)),
            optimizer.register_step_post_hook(lambda *_: self._timed(self._after_step)),
        )

    def settle(self) -> None:
        """Make one model of all ranks': the same bits of weights and of the optimizer's tensors. Collective.

        Raises `UserError` where ranks' optimizers keep different tensors.
        """
        if self._apart:
            self._exchange(self._settle)

    def state_dict(self) -> dict[str, Tensor]:
        """What must survive a checkpoint, after `settle`: the same on every rank, for any number of ranks."""
        return {}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        if state:
            raise ValueError(f"{self.name} keeps no state, but was given {sorted(state)}.")

    @classmethod
    def lasting(cls, state: Mapping[str, Tensor]) -> dict[str, Tensor]:  # noqa: ARG003 - of those that keep such
        """Of a `state_dict` what still holds, and may be loaded, once another exchange has moved the weights."""
        return {}

    def take_wait_seconds(self) -> float:
        """Seconds since the last call that steps waited for the averaging; who settles is in no step."""
        seconds, self._wait_seconds = self._wait_seconds, 0.0
        return seconds

    def close(self) -> None:
        """No step is averaged any more. Collective, where steps were taken since ranks were settled."""
        if self._apart:
            self._end()
        for hook in self._hooks:
            hook.remove()

    @abstractmethod
    def _begin(self) -> None:
        """All ranks hold the same weights: the algorithm begins with them."""

    def _before_step(self) -> None:
        """Gradients are there, the optimizer steps next."""
        return

    @abstractmethod
    def _stepped(self) -> None:
        """The optimizer has stepped."""

    def _end(self) -> None:
        """End what is under way, on every rank alike: weights are settled next, or are no more of interest."""
        return

    def _weights(self) -> list[Tensor]:
        return [parameter.detach() for parameter in self._parameters.values()]

    def _after_step(self) -> None:
        self._apart = True
        self._stepped()

    def _settle(self) -> None:
        self._end()
        if self._world > 1:
            moments = dict(self._moments())
            self._check_alike(moments)
            average([*self._weights(), *moments.values()], self._group, self._hierarchy)
        self._apart = False
        self._begin()

    def _moments(self) -> Iterator[tuple[str, Tensor]]:
        """The optimizer's floating tensors of each parameter, by names that are the same on every rank."""
        parameters = itertools.chain.from_iterable(group["params"] for group in self._optimizer.param_groups)
        for i, parameter in enumerate(parameters):
            kept = self._optimizer.state.get(parameter, {})
            for key in sorted(kept, key=str):
                value = kept[key]
                if isinstance(value, Tensor) and value.is_floating_point():
                    yield f"{i}/{key}", value

    def _check_alike(self, moments: Mapping[str, Tensor]) -> None:
        """Other tensors on another rank would be added up wrongly, or waited for without an end."""
        listed = str([(key, tuple(value.shape), value.dtype) for key, value in moments.items()])
        own = torch.tensor([len(moments), zlib.crc32(listed.encode())])
        all_ranks = torch.empty(2 * self._world, dtype=own.dtype)
        dist.all_gather_single(all_ranks, own, group=self._group)
        counts = all_ranks.view(-1, 2)
        if not bool((counts == counts[0]).all()):
            raise UserError(
                f"The optimizers of the ranks keep different tensors ({counts[:, 0].tolist()} of them, by rank), and "
                f"{self.name} averages them; possible are an optimizer that keeps the same of every parameter that it "
                "was given a gradient of, or a comm.algorithm that exchanges gradients."
            )

    def _timed(self, work: Callable[[], None]) -> None:
        started = time.perf_counter()
        self._exchange(work)
        self._wait_seconds += time.perf_counter() - started

    def _exchange(self, work: Callable[[], None]) -> None:
        with torch.no_grad(), in_time(f"the averaging of weights by {self.name}"):
            work()
