"""The words of the platform as frozen data: what decisions are made from and what they give.

Nothing here reads a clock, a file or a network. Times are seconds: instants as Unix time, spans as plain
seconds. `Snapshot` and everything in it is an immutable picture of the ledger; a policy turns it into a
`Plan` (see `elastic_core.policy`). All of it goes through JSON unchanged (`to_json`, `from_json`), so that
a decision can be stored with its inputs and replayed.
"""

from __future__ import annotations

from elastic_core.domain.decisions import (
    EndedJob,
    JobState,
    JobView,
    Plan,
    Preemptor,
    PutFirst,
    SegmentState,
    Snapshot,
    Target,
    kind_of_work,
)
from elastic_core.domain.exact_run import (
    ExactLoss,
    ExchangeFallback,
)
from elastic_core.domain.exchange_costs import (
    ExchangeCost,
    ExchangeNeeds,
    Link,
)
from elastic_core.domain.json_values import (
    first_problems,
    from_json,
    to_json,
)
from elastic_core.domain.observed import (
    ExchangeChoice,
    ExchangeFigures,
    Observation,
    PlacedSpeed,
    ProfilePoint,
    Quantiles,
    StepForecast,
    ThroughputModel,
    WorkForecast,
    WorkLeft,
)
from elastic_core.domain.placed import (
    LayerTimes,
    PlacedFigures,
    PlacedLayer,
    PlacedModel,
    PlacedStage,
    SlotTraits,
    Stages,
)
from elastic_core.domain.resources import (
    AUTO,
    CPU,
    EXACT,
    Allocation,
    Layout,
    Limits,
    Node,
    Queue,
    Roles,
    ServerLimits,
    Slot,
)
from elastic_core.domain.segment_ids import (
    SEGMENT_MARK,
    segment_id_of,
    segment_index_of,
)

__all__ = [
    "AUTO",
    "CPU",
    "EXACT",
    "SEGMENT_MARK",
    "Allocation",
    "EndedJob",
    "ExactLoss",
    "ExchangeChoice",
    "ExchangeCost",
    "ExchangeFallback",
    "ExchangeFigures",
    "ExchangeNeeds",
    "JobState",
    "JobView",
    "LayerTimes",
    "Layout",
    "Limits",
    "Link",
    "Node",
    "Observation",
    "PlacedFigures",
    "PlacedLayer",
    "PlacedModel",
    "PlacedSpeed",
    "PlacedStage",
    "Plan",
    "Preemptor",
    "ProfilePoint",
    "PutFirst",
    "Quantiles",
    "Queue",
    "Roles",
    "SegmentState",
    "ServerLimits",
    "Slot",
    "SlotTraits",
    "Snapshot",
    "Stages",
    "StepForecast",
    "Target",
    "ThroughputModel",
    "WorkForecast",
    "WorkLeft",
    "first_problems",
    "from_json",
    "kind_of_work",
    "segment_id_of",
    "segment_index_of",
    "to_json",
]
