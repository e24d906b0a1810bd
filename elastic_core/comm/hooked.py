"""Base of the algorithms that are DDP communication hooks: buckets are exchanged in order on one thread.

DDP hands buckets over while backward still runs, in the same order on every rank. An algorithm may need several
collectives per bucket; started from callbacks they would interleave differently on each rank and deadlock, so
one thread works the buckets off one after another. It also knows how long the last bucket kept backward waiting.

Gradients on a CUDA device are computed on a stream of the device after `submit` has returned: the thread waits for a
bucket's, works on a stream of its own, and the future that DDP waits for carries that stream's work.
"""

from __future__ import annotations

import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from queue import SimpleQueue
from typing import ClassVar

import torch
import torch.distributed as dist
from torch import Tensor
from torch.futures import Future
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from elastic_core.comm.algorithm import BucketProbe, GradBucket
from elastic_core.comm.hierarchy import Hierarchy
from elastic_core.comm.hook import exchange
from elastic_core.comm.piecewise import swap
from elastic_core.comm.silence import explained
from elastic_core.comm.traffic import Traffic


@dataclass(frozen=True, slots=True)
class Bucket:
    """Gradients of one dtype: flat, and as views by the names of their parameters, in their shapes. `last`: of
    a step."""

    buffer: Tensor
    gradients: Mapping[str, Tensor]
    last: bool


@dataclass(frozen=True, slots=True)
class _Item:
    """`computed`: on a CUDA device, when the gradients are."""

    bucket: Bucket
    future: Future[Tensor]
    computed: torch.cuda.Event | None


FIRST_BUCKET_BYTES = 1024 * 1024  # of a step, at most: the exchange begins early


_linger: Callable[[], None] | None = None


@contextmanager
def slower_link(linger: Callable[[], None]) -> Iterator[None]:
    """Every rank's exchange thread calls `linger` once a step, when its gradients are there and before the last bucket
    is exchanged: as if the link took so much longer. For training that is paced (`examples.paced`)."""
    global _linger
    _linger, before = linger, _linger
    try:
        yield
    finally:
        _linger = before


class HookedAlgorithm(ABC):
    """Subclasses give `reduce`. Messages are in memory of the host and go over a backend that blocks (gloo); gradients
    are there, or on a CUDA device."""

    name: ClassVar[str]

    def __init__(self, group: dist.ProcessGroup | None = None) -> None:
        self._group = group
        self._rank, self._world = 0, 1
        if dist.is_initialized():
            self._rank, self._world = dist.get_rank(group), dist.get_world_size(group)
        self._among: Sequence[int] | None = None  # those of the group's ranks that exchange; None: all
        self._hierarchy: Hierarchy | None = None
        self._probe: BucketProbe | None = None
        self._weight = 1.0
        self._device = torch.device("cpu")
        self._names: dict[int, str] = {}  # of parameters that want gradients, by their ids
        self._queue: SimpleQueue[_Item | None] = SimpleQueue()
        self._thread: threading.Thread | None = None
        self._failure: BaseException | None = None
        self._joint: Tensor | None = None  # where buckets are put together
        self.bucket_bytes: int | None = None  # DDP's buckets are put together to so many; None: as they come
        self._last_ready = 0.0
        self._wait_seconds = 0.0
        self._under_way = 0  # exchanges that have begun and not ended
        self._last_begun = False  # of a step
        self._ending = threading.Lock()  # they may end on threads of the backend

    @property
    def in_force(self) -> str:
        return self.name

    @abstractmethod
    def reduce(self, buffer: Tensor) -> Tensor:
        """The sum over ranks of a flat bucket; may be done in place. Runs on the exchange thread."""

    def within(self, hierarchy: Hierarchy) -> None:
        """From now on nodes' sums are exchanged between leaders. Before the first exchange; of algorithms that have no
        `reduce_bucket` of their own."""
        self._hierarchy, self._among = hierarchy, hierarchy.leaders
        self._world = len(hierarchy.leaders)
        self._rank = hierarchy.leaders.index(self._rank) if hierarchy.leads else -1

    def sum(self, values: Tensor) -> Tensor:
        """Over all ranks, in place where `reduce` is; collective."""
        return self.reduce(values) if self._hierarchy is None else self._hierarchy.around(values, self.reduce)

    def swap(self, sends: Mapping[int, Tensor], receives: Mapping[int, Tensor]) -> None:
        """As `piecewise.swap`, by rank among those that exchange."""
        swap(sends, receives, self._group, self._among)

    def begin(self, buffer: Tensor) -> Future[Tensor] | None:  # noqa: ARG002 - of those that can
        """Start the sum of a flat bucket, in place, so that the next one's may start before it has ended. None:
        `reduce_bucket` makes it, one bucket after another. Runs on the exchange thread."""
        return None

    def reduce_bucket(self, bucket: Bucket) -> Tensor:
        """The same for algorithms that treat parameters by their shapes, or keep something of each."""
        return self.sum(bucket.buffer)

    @classmethod
    def traffic(cls, shapes: Sequence[torch.Size], world: int) -> Traffic | None:  # noqa: ARG003 - of those that say
        """Of a bucket of single precision gradients in these shapes. None: not to be chosen by measurement, since a
        few steps under it are more than a trial."""
        return None

    @classmethod
    def step_traffic(cls, buckets: Sequence[Sequence[torch.Size]], world: int) -> list[Traffic] | None:
        """Of each of a step's buckets, in the order of backward; where it hangs on more than the bucket itself."""
        each = [cls.traffic(bucket, world) for bucket in buckets]
        known = [traffic for traffic in each if traffic is not None]
        return known if len(known) == len(each) else None

    @classmethod
    def backward_share(cls, shapes: Sequence[torch.Size], world: int) -> float:  # noqa: ARG003 - of those that leave out
        """Of backward, how much a rank computes in the mean over steps."""
        return 1.0

    @classmethod  # noqa: B027 - most compute nothing
    def rehearse(cls, values: Tensor) -> None:
        """What `reduce` computes of so many values beside their sum, once, so that it can be timed.

        values: float32 (n), n a square; may be changed. Nothing, for who sends values as they are.
        """

    def attach(self, model: DistributedDataParallel, probe: BucketProbe | None = None, weight: float = 1.0) -> None:
        self.start(model, probe, weight)
        model.register_comm_hook(self, exchange)

    def start(self, model: DistributedDataParallel, probe: BucketProbe | None = None, weight: float = 1.0) -> None:
        """Be ready for `submit`: the part of `attach` that a model bears more than once."""
        assert self._thread is None, "one algorithm object serves one model"
        self._probe, self._weight, self._device = probe, weight, next(model.parameters()).device
        learnt = [(name, parameter) for name, parameter in model.module.named_parameters() if parameter.requires_grad]
        self._names = {id(parameter): name for name, parameter in learnt}
        self._thread = threading.Thread(target=self._work, name=f"comm-{self.name}", daemon=True)
        self._thread.start()

    def follow(self, optimizer: Optimizer) -> None:  # noqa: ARG002 - it steps by what is exchanged
        return None

    def gradients_are_local(self) -> bool:
        return False

    def of_whole_batch(self) -> bool:
        return True

    def set_in_force(self, in_force: bool) -> None:  # noqa: B027 - most do nothing outside of `submit`
        """Told by whoever has several algorithms at one model: between two steps, whether this one is used next."""

    def settle(self) -> None:  # noqa: B027 - ranks that step by the same gradients are one model
        """As `Exchange.settle`."""

    def state_dict(self) -> dict[str, Tensor]:
        return {}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        if state:
            raise ValueError(f"{self.name} keeps no state, but was given {sorted(state)}.")

    def take_wait_seconds(self) -> float:
        seconds, self._wait_seconds = self._wait_seconds, 0.0
        return seconds

    def failure(self) -> BaseException | None:
        return self._failure

    def close(self) -> None:
        if self._thread is not None:
            self._queue.put(None)
            self._thread.join()

    def submit(self, bucket: GradBucket) -> Future[Tensor]:
        if self._probe is not None:
            self._probe(bucket)
        device = bucket.buffer().device
        future: Future[Tensor] = Future(devices=[device] if device.type == "cuda" else None)
        if bucket.is_last():
            self._last_ready = time.perf_counter()
        views = zip(bucket.parameters(), bucket.gradients(), strict=True)
        gradients = {self._names[id(parameter)]: view for parameter, view in views}
        self._queue.put(_Item(Bucket(bucket.buffer(), gradients, bucket.is_last()), future, _end_of_work(device)))
        return future

    def _work(self) -> None:
        torch.set_num_threads(1)
        waiting: list[_Item] = []
        first = True  # of the step's exchanges
        with _own_stream(self._device):
            while (item := self._queue.get()) is not None:
                large = self._are_enough([item], first)
                other = bool(waiting) and waiting[0].bucket.buffer.dtype != item.bucket.buffer.dtype
                if waiting and (other or (large and item.bucket.last)):
                    self._exchange(waiting)
                    waiting, first = [], False
                if large:  # not put together with small ones that came before: that would be a copy of all of it
                    self._exchange([item])
                    first = False
                else:
                    waiting.append(item)
                if waiting and (item.bucket.last or self._are_enough(waiting, first)):
                    self._exchange(waiting)
                    waiting, first = [], False
                first = first or item.bucket.last

    def _are_enough(self, items: Sequence[_Item], first: bool) -> bool:
        if self.bucket_bytes is None:
            return True
        limit = min(FIRST_BUCKET_BYTES, self.bucket_bytes) if first else self.bucket_bytes
        return sum(item.bucket.buffer.nbytes for item in items) >= limit

    def _exchange(self, items: Sequence[_Item]) -> None:
        """Buckets of one dtype, at once."""
        try:
            self._await(items[-1])
            if items[-1].bucket.last and _linger is not None:
                _linger()
            bucket = items[0].bucket if len(items) == 1 else self._together([item.bucket for item in items])
            if self._weight != 1.0:
                bucket.buffer.mul_(self._weight)
            with self._ending:
                self._under_way += 1
                self._last_begun = self._last_begun or items[-1].bucket.last
            begun = self.begin(bucket.buffer) if len(items) == 1 else None
            reduced = self.reduce_bucket(bucket) if begun is None else bucket.buffer
        except Exception as error:  # noqa: BLE001 - handed to backward, which raises it on the main thread
            self._fail(items, error)
            return
        if begun is None:
            self._end(items, reduced)
        else:
            begun.add_done_callback(lambda done: self._end_begun(items, done))

    def _end_begun(self, items: Sequence[_Item], done: Future[Tensor]) -> None:
        """On a thread of the backend."""
        try:
            reduced = done.value()
        except Exception as error:  # noqa: BLE001 - as above
            self._fail(items, error)
        else:
            self._end(items, reduced)

    def _end(self, items: Sequence[_Item], reduced: Tensor) -> None:
        with self._ending:
            self._under_way -= 1
            if self._last_begun and not self._under_way:  # the last bucket may be done before a larger one
                self._wait_seconds += time.perf_counter() - self._last_ready
                self._last_begun = False
        if len(items) == 1:
            items[0].future.set_result(reduced)
            return
        parts = torch.split(reduced, [item.bucket.buffer.numel() for item in items])
        for item, part in zip(items, parts, strict=True):
            item.future.set_result(item.bucket.buffer.copy_(part))

    def _fail(self, items: Sequence[_Item], error: Exception) -> None:
        self._failure = explained(error, f"the exchange of gradients by {self.name}")
        for item in items:
            item.future.set_exception(self._failure)  # type: ignore[arg-type]  # torch's annotation is wrong

    def _await(self, item: _Item) -> None:
        """Until its gradients are computed, and those of all before it."""
        if item.computed is not None:
            item.computed.synchronize()
            if item.bucket.last:
                self._last_ready = time.perf_counter()

    def _together(self, buckets: Sequence[Bucket]) -> Bucket:
        """One after another in one buffer, a copy; of no use any more when the next ones are put together."""
        own, size = buckets[0].buffer, sum(bucket.buffer.numel() for bucket in buckets)
        if self._joint is None or self._joint.dtype != own.dtype or self._joint.numel() < size:
            self._joint = own.new_empty(size)  # kept: memory that is new is dear
        buffer, gradients, first = self._joint[:size], {}, 0
        torch.cat([bucket.buffer for bucket in buckets], out=buffer)
        for bucket in buckets:
            begin = first - bucket.buffer.storage_offset()
            for name, gradient in bucket.gradients.items():
                place = begin + gradient.storage_offset()
                gradients[name] = buffer[place : place + gradient.numel()].view(gradient.shape)
            first += bucket.buffer.numel()
        return Bucket(buffer, gradients, buckets[-1].last)


def _end_of_work(device: torch.device) -> torch.cuda.Event | None:
    """Of what the device has been given so far, on this thread's stream; the host's is done."""
    if device.type != "cuda":
        return None
    event = torch.cuda.Event()  # type: ignore[no-untyped-call]
    event.record(torch.cuda.current_stream(device))
    return event


def _own_stream(device: torch.device) -> AbstractContextManager[object]:
    if device.type != "cuda":
        return nullcontext()
    return torch.cuda.stream(torch.cuda.Stream(device))  # type: ignore[no-untyped-call]
