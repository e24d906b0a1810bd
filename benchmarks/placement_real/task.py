"""The paced click model that writes `<step> <loss in hex>` a line, in double precision.

In single precision the order in which sums over ranks are added shows after some twenty steps of 512 samples, before
anything has disturbed a job, and grows from there. In double precision rounding starts nine digits lower, so that what
shows is something that was read, updated or restored otherwise.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import Field
from torch import Tensor, nn

from elastic_core.train.entry import session_task
from elastic_core.train.layouts import Declared
from elastic_core.train.session import Session
from examples.paced_ctr import PacedCTR, PacedCTRParams


class RecordedParams(PacedCTRParams):
    curve: str = Field(description="rank 0's file")


def _task(params: Mapping[str, Any]) -> PacedCTR:
    return PacedCTR(RecordedParams.model_validate(params))


def _model(params: Mapping[str, Any]) -> nn.Module:
    return _task(params).model().double()


def _layers(params: Mapping[str, Any], model: nn.Module) -> Sequence[nn.Module]:
    return _task(params).layers(model)


@session_task(
    dataset_samples=lambda params: len(_task(params).dataset()),
    params=RecordedParams,
    model=_model,
    layers=_layers,
)
def recorded(session: Session) -> None:
    task, path = _task(session.params), Path(session.params["curve"])
    model = _model(session.params)
    wire = task.starts_on(model, session.allocation, session.rank)
    session.prepare(model, task.optimizer(model), task.dataset(), declared=Declared(layers=task.layers, wire=wire))
    told = session.num_steps

    def tell() -> None:
        nonlocal told
        if session.num_steps > told:
            told = session.num_steps
            if session.rank == 0:
                with path.open("a") as file:
                    file.write(f"{told} {session.last_loss.hex()}\n")

    def loss(model: nn.Module, batch: list[Tensor]) -> Tensor:
        tell()
        categories, numbers, clicks = batch
        return task.loss(model, [categories, numbers.double(), clicks.double()])

    try:
        session.train(loss)
    finally:
        tell()


def read_curve(path: Path) -> list[tuple[int, float]]:
    """(step, loss) in the order in which steps were taken: more than once where a killed process had taken them."""
    return [(int(step), float.fromhex(loss)) for step, loss in (line.split() for line in path.open())]
