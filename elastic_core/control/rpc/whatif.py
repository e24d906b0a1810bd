"""What another policy would have done with the jobs of this ledger: the simulator, kept within bounds.

The only place of the control plane that knows the simulator. One question at a time, of limited size, because it runs
beside the decisions that matter.
"""

from __future__ import annotations

from threading import Lock
from typing import Any

from elastic_core.control.plane import LedgerControl
from elastic_core.errors import Conflict, UserError
from elastic_core.policy import registry
from elastic_core.sim.engine.engine import Options, simulate
from elastic_core.sim.replay import compared_with_past, pool_of

MAX_JOBS = 100
MAX_DECISIONS = 3000
_answering = Lock()


def what_if(control: LedgerControl, policy: str, jobs: int = MAX_JOBS) -> dict[str, Any]:
    """The last jobs as they ran and as they would have run, as the JSON of a report, without timelines.

    Raises `UserError` for a policy that does not exist, `Conflict` while another question is being answered.
    """
    chosen, options = registry.get(policy), Options(max_decisions=MAX_DECISIONS)
    if not 1 <= jobs <= MAX_JOBS:
        raise UserError(f"jobs is {jobs}; it takes 1 to {MAX_JOBS}, the last ones to be submitted")
    if not _answering.acquire(blocking=False):
        raise Conflict("another what-if is being answered; ask again in a moment")
    try:
        snapshot = control.snapshot()
        past = control.history(jobs)
        pool = pool_of(past, snapshot.nodes)
        comparison = compared_with_past(
            past, pool, snapshot.now, lambda loaded: [simulate(loaded, pool, chosen, options)],
            queues=snapshot.queues, settings={"jobs": jobs},
        )  # fmt: skip
        return comparison.to_json(timeline=False)
    finally:
        _answering.release()
