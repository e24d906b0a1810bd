"""What would be, or would have been, under another policy: simulated in a process that is started for the question.

A simulation runs policies thousands of times, and a policy may hang or hoard. So the API server reads what is needed
from the ledger, and a child process simulates (`rpc.what_if_process`): it is killed at `SECONDS`, may have as much
memory as the process that decides (`ELASTIC_DECIDE_MEMORY_MB`), and ends with the API server. One question at a time,
replays of decisions included, because they run beside the decisions that matter.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from threading import Lock
from typing import Any, cast

from elastic_core.control.job_list import JobsWanted
from elastic_core.control.plane import LedgerControl
from elastic_core.control.rpc.what_if_answers import Pace
from elastic_core.control.scheduling.policy_process import Child, NoAnswer
from elastic_core.domain import from_json, to_json
from elastic_core.errors import Conflict, UserError
from elastic_core.policy import registry
from elastic_core.protocol.calls import decode_error
from elastic_core.protocol.encoding import encode
from elastic_core.protocol.rest.answers import JobsIn
from elastic_core.protocol.rest.what_if import COURSE_SECONDS, WhatIf, WhatIfAnswer, WhatIfExpected

MAX_JOBS = 100
MAX_DECISIONS = 3000
SECONDS = 30.0  # of the wall clock, from when the process is ready; each of two courses has 10 s between decisions
COMMAND = (sys.executable, "-m", "elastic_core.control.rpc.what_if_process")
_answering = Lock()
_pace = Pace()


class Busy(Conflict):
    """Somebody else's question is being answered: the same may be answered a moment later."""

    http_status = 429


def what_if(control: LedgerControl, policy: str, jobs: int = MAX_JOBS) -> dict[str, Any]:
    """The last jobs as they ran and as they would have run, as the JSON of a report, without timelines.

    Raises `UserError` for a policy that does not exist, or where it takes too long or too much memory, and `Busy` while
    another question is being answered.
    """
    registry.get(policy)
    if not 1 <= jobs <= MAX_JOBS:
        raise UserError(f"jobs is {jobs}; it takes 1 to {MAX_JOBS}, the last ones to be submitted")
    with one_at_a_time():
        snapshot, past = control.snapshot(), control.history(jobs)
        question = {"policy": policy, "jobs": jobs, "most": MAX_DECISIONS, "snapshot": snapshot, "past": past}
        return cast("dict[str, Any]", _simulated(control, question))


def ahead(control: LedgerControl, asked: WhatIf) -> WhatIfAnswer:
    """How the active jobs would fare, as `sim.projection.what_if` says; raises what that does, and what `what_if` does.

    Raises `NotFound` for a job that there is not.
    """
    with one_at_a_time():
        snapshot, in_force = control.snapshot(), to_json(control.policy())
        named = {job_id: to_json(control.job(job_id)) for job_id in asked.jobs}
        question = {"asked": to_json(asked), "snapshot": snapshot, "in_force": in_force, "named": named}
        began = time.monotonic()
        answer = from_json(WhatIfAnswer, _simulated(control, question))
        _pace.learn(answer, time.monotonic() - began)
        return answer


def expected(control: LedgerControl) -> WhatIfExpected:
    """How long `ahead` would take now."""
    active = control.jobs_page(JobsWanted(state=JobsIn.ACTIVE, limit=1)).total
    return _pace.expected(active, COURSE_SECONDS)


@contextmanager
def one_at_a_time() -> Iterator[None]:
    """Raises `Busy` while another question is being answered."""
    if not _answering.acquire(blocking=False):
        raise Busy("another what-if or replay is being answered; ask again in a moment")
    try:
        yield
    finally:
        _answering.release()


def _simulated(control: LedgerControl, question: Mapping[str, Any]) -> Any:
    """What the process says to the question, or the error that it met."""
    memory = control.settings.decide_memory_mb
    child = Child((*COMMAND, str(memory)))
    try:
        child.wait_until_ready("the process that simulates did not start")
        child.write(encode(question))
        answer = child.read(SECONDS, "the simulation did not end")
    except NoAnswer as failure:
        raise UserError(
            f"{failure}. It may take {SECONDS:g} s and {memory} MiB (ELASTIC_DECIDE_MEMORY_MB): ask of fewer jobs, or "
            "of another policy"
        ) from failure
    finally:
        child.stop()
    if "error" in answer:
        raise decode_error(500, answer["error"].encode())
    return answer["answer"]
