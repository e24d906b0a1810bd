"""A training loop that says nothing of its model."""

from __future__ import annotations

from elastic_core.train.entry import session_task
from elastic_core.train.session import Session


@session_task(dataset_samples=10)
def bare(session: Session) -> None:
    raise AssertionError("registering a model must not train")
