"""The paced click model that writes `<step> <loss in hex>` a line."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from elastic_core.train.entry import session_task
from elastic_core.train.session import Session
from examples import paced_ctr

CURVE = "curve"  # rank 0's file


def _samples(params: Mapping[str, Any]) -> int:
    return paced_ctr.PacedCTRParams.model_validate(_own(params)).samples


def _own(params: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in params.items() if name != "folder"}


@session_task(dataset_samples=_samples)
def recorded(session: Session) -> None:
    folder = Path(session.params["folder"])

    def stepped() -> None:
        if session.rank == 0:
            with (folder / CURVE).open("a") as file:
                file.write(f"{session.num_steps} {session.last_loss.hex()}\n")

    paced_ctr.train(session, stepped, _own(session.params))
