"""What a session holds between its calls: all that `prepare` made, and the step under way."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from elastic_core.train.checkpoint.restore import Restored
from elastic_core.train.data.audit import ReadLog
from elastic_core.train.data.batches import DataPlan, MicroBatch, Reader, StepPlan
from elastic_core.train.data.item_weights import ItemWeights
from elastic_core.train.layouts import Wire
from elastic_core.train.steps.early_stopping import HeldOut
from elastic_core.train.steps.segments import Segments
from elastic_core.train.steps.stepping import Stepper

if TYPE_CHECKING:  # at run time where a layout needs them: they load torch's parallel libraries
    from elastic_core.train.gradients.gradients_of import AnyGradients, AnyPart


@dataclass
class Prepared:
    """What `prepare` made."""

    gradients: AnyGradients
    stepper: Stepper
    segments: Segments
    reader: Reader
    plan: DataPlan
    reads: ReadLog
    restored: Restored
    partition: AnyPart | None  # None: this rank holds and steps the whole model
    wire: Wire | None  # between the stages of a placed job
    items: ItemWeights | None  # None: micro-batches weigh by their samples
    held_out: HeldOut | None  # None: the job has no patience


@dataclass
class Current:
    """The step under way; `micro` is the micro-batch that waits for its loss."""

    plan: StepPlan
    started: float
    micro: MicroBatch | None = None
