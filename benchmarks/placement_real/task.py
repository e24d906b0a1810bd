"""The paced click model that writes `<step> <loss in hex>` a line."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from elastic_core.train.entry import session_task
from elastic_core.train.layouts import Declared
from elastic_core.train.session import Session
from examples.paced_ctr import PacedCTR

CURVE = "curve"  # rank 0's file


@session_task(dataset_samples=lambda params: len(_task(params).dataset()))
def recorded(session: Session) -> None:
    task, path = _task(session.params), Path(session.params["folder"]) / CURVE
    model = task.model()
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
        return task.loss(model, batch)

    session.train(loss)
    tell()


def _task(params: Mapping[str, Any]) -> PacedCTR:
    return PacedCTR(PacedCTR.Params.model_validate({name: value for name, value in params.items() if name != "folder"}))
