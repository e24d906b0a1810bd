"""The example transformer as a task that measures nothing at a boundary, whose time would be that of its data."""

from __future__ import annotations

from elastic_core.train.task import Task
from examples.bytes_lm import BytesLM


class Transformer(BytesLM):
    evaluate = Task.evaluate
