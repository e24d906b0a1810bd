"""Questions that a policy has to work for: `POST /api/v1/what-if`, and `GET /api/v1/decisions/{id}/replay`.

They change nothing, so whoever may look may ask. One at a time, each in a process with limits (`rpc.whatif`), because
they run beside what matters more.
"""

# No `from __future__ import annotations`: FastAPI reads the annotations of handlers, which name local dependencies.
from collections.abc import Callable
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Query, Response
from pydantic import Field

from elastic_core.control.plane import LedgerControl
from elastic_core.control.rpc.api_v1 import PREFIX, Asked, ChangesWanted, answers, parsed, takes
from elastic_core.control.rpc.cross_site import refuse_other_sites
from elastic_core.control.rpc.what_if_answers import KeptAnswers
from elastic_core.control.rpc.whatif import ahead, expected, one_at_a_time
from elastic_core.domain import to_json
from elastic_core.protocol.encoding import dumps
from elastic_core.protocol.rest.answers import DecisionReplayed
from elastic_core.protocol.rest.what_if import MOST_AHEAD, AddedNodes, WhatIf, WhatIfAnswer, WhatIfExpected
from elastic_core.spec.job_changes import JobChanges

Dependency = Callable[..., Any]
MOST_NAMED = 500
From = Annotated[int, Query(ge=0)]
UpTo = Annotated[int, Query(ge=1, le=MOST_AHEAD)]


class NodesAdded(Asked):
    type: str = Field(min_length=1, max_length=100)
    num_slots: int = Field(ge=1, le=10_000)
    count: int = Field(default=1, ge=1, le=10_000)


class WhatIfWanted(Asked):
    """What is changed; whatever is not named stays as it is."""

    policy: str | None = Field(default=None, max_length=100, description="the one in force decides where none is named")
    add: list[NodesAdded] = Field(default=[], max_length=100)
    without: list[str] = Field(default=[], max_length=MOST_NAMED, description="names of nodes that are left out")
    jobs: dict[str, ChangesWanted] = Field(default={}, max_length=MOST_NAMED, description="by job id")

    def question(self) -> WhatIf:
        return WhatIf(
            policy=self.policy,
            add=tuple(AddedNodes(**group.model_dump()) for group in self.add),
            without=tuple(self.without),
            jobs={job_id: JobChanges(**changes.model_dump()) for job_id, changes in self.jobs.items()},
        )


def questions_router(control: LedgerControl, reads: Dependency, body: Dependency) -> APIRouter:
    router = APIRouter(prefix=PREFIX, dependencies=[Depends(reads)], tags=["pool"])
    same_site = [Depends(refuse_other_sites)]
    kept = KeptAnswers()

    @router.post("/what-if", openapi_extra=takes(WhatIfWanted), dependencies=same_site)
    @answers(WhatIfAnswer)
    def ask(content: Annotated[bytes, Depends(body)], offset: From = 0, limit: UpTo = 50) -> Response:
        """How the active jobs would fare: simulated, twice, within half a minute. Nothing is changed.

        A page of them; the others are asked for by the answer's id.
        """
        answer_id = kept.keep(ahead(control, parsed(content, WhatIfWanted).question()))
        return _json(kept.page(answer_id, offset, limit))

    @router.get("/what-if/answers/{answer_id}")
    @answers(WhatIfAnswer)
    def turn_page(answer_id: str, offset: From = 0, limit: UpTo = 50) -> Response:
        """Another page of an answer, which is kept for a quarter of an hour."""
        return _json(kept.page(answer_id, offset, limit))

    @router.get("/what-if/expected")
    @answers(WhatIfExpected)
    def how_long() -> Response:
        """How long a what-if would take now."""
        return _json(expected(control))

    @router.get("/decisions/{decision_id}/replay")
    @answers(DecisionReplayed)
    def replay(decision_id: int) -> Response:
        """What its policy decides today from the inputs of a recorded decision."""
        with one_at_a_time():
            again = control.replay(decision_id)
        return _json(DecisionReplayed(decision_id=decision_id, same=again.same, again=again.again))

    return router


def _json(value: Any) -> Response:
    return Response(dumps(to_json(value)), media_type="application/json")
