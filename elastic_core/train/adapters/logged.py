"""What a `LightningModule` logs, where no Lightning trainer collects it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn


class Logged:
    """Stands in for `LightningModule.log` and `log_dict`: means over batches, weighted by their samples."""

    def __init__(self) -> None:
        self._sums: dict[str, tuple[Any, int]] = {}  # sum of values times samples, samples
        self._objects: dict[str, Any] = {}  # of torchmetrics, which keep their own sums
        self._samples, self._suffix = 1, ""

    def attach(self, module: nn.Module) -> None:
        module.log = self.log  # type: ignore[assignment]
        module.log_dict = self.log_dict  # type: ignore[assignment]

    def begin_batch(self, batch: Any, suffix: str = "") -> None:
        """`suffix`: of the names, where several data sets are evaluated."""
        self._samples, self._suffix = samples_of(batch), suffix

    def log(self, name: str, value: Any, *_: Any, batch_size: int | None = None, **__: Any) -> None:
        """As `LightningModule.log`; what it says of bars, loggers and ranks does not count here."""
        if hasattr(value, "compute"):
            self._objects[name + self._suffix] = value
            return
        samples = self._samples if batch_size is None else batch_size
        value = value.detach() if isinstance(value, Tensor) else value
        total, count = self._sums.get(name + self._suffix, (0.0, 0))
        self._sums[name + self._suffix] = total + value * samples, count + samples

    def log_dict(self, dictionary: Mapping[str, Any], *arguments: Any, **more: Any) -> None:
        for name, value in dictionary.items():
            self.log(name, value, *arguments, **more)

    def take(self) -> dict[str, float]:
        """All since the last time."""
        taken = {name: float(total / count) for name, (total, count) in self._sums.items() if count}
        for name, metric in self._objects.items():
            taken[name] = float(metric.compute())
            metric.reset()
        self._sums, self._objects = {}, {}
        return taken


def samples_of(batch: Any) -> int:
    """Rows of the first tensor in it; 1 where there is none."""
    if isinstance(batch, Tensor):
        return len(batch) if batch.ndim else 1
    parts = batch.values() if isinstance(batch, Mapping) else batch if isinstance(batch, (list, tuple)) else ()
    return next((samples_of(part) for part in parts if isinstance(part, (Tensor, Mapping, list, tuple))), 1)
