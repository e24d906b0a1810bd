"""Cases sent to a control API, and what came of each."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import httpx

from elastic_core.control.plane import LedgerControl
from elastic_core.domain import Snapshot
from elastic_core.protocol.tokens import ServiceSigner
from tests.builders import FACTS, Life, a_cluster, a_commit, a_spec
from tests.security.odd_specs.cases import PARENT, Case

ANSWERS = (200, 422)
STARTS = ("submit", "named", "sweep", "file", "fork")  # ways that start a run


def a_parent(control: LedgerControl) -> int:
    """A pool, and a job in it that trains; the number of its checkpoint."""
    control.set_cluster(a_cluster())
    control.submit(PARENT, a_spec(name=PARENT), FACTS)
    life = Life(control, control.trainer, PARENT)
    order = life.start()
    control.trainer(order.token).commit(a_commit(order, 100))
    return control.checkpoints(PARENT)[-1].checkpoint_id


@dataclass
class Outcome:
    answers: Counter[tuple[str, int]] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)  # answers that no case may get
    runs: set[str] = field(default_factory=set)  # that were started, as the answers say
    recorded: set[str] = field(default_factory=set)  # jobs that were, without a run


class Asking:
    """Sends cases to the app at `url`, and keeps count."""

    def __init__(self, url: str, token: str, secret: bytes, control: LedgerControl) -> None:
        self.outcome = Outcome()
        self._client = httpx.Client(base_url=url, timeout=120)
        self._token, self._signer, self._control = token, ServiceSigner(secret), control

    def ask(self, case: Case) -> int:
        """The status. What the ledger holds of jobs that it started ends at once, so that the pool stays as it is."""
        if case.refused_before:
            self.outcome.answers[case.route, 422] += 1
            return 422
        try:
            answer = self.send(case)
        except httpx.TransportError as error:
            self.outcome.wrong.append(f"{case}: no answer: {error!r}"[:1500])
            return 0
        self.outcome.answers[case.route, answer.status_code] += 1
        taken = answer.status_code == 409 and self._is_taken(case)
        if not taken and answer.status_code not in (*ANSWERS, *((404,) if case.absent else ())):
            self.outcome.wrong.append(f"{case}: {answer.status_code} {answer.text[:300]}"[:1500])
        if answer.status_code == 200:
            self._started(case, answer.json())
        elif answer.status_code == 422 and not answer.json().get("message"):
            self.outcome.wrong.append(f"{case}: refused without words: {answer.text[:300]}"[:1500])
        return answer.status_code

    def send(self, case: Case) -> httpx.Response:
        headers = {"content-type": "application/json", "authorization": f"Bearer {self._token}"}
        if case.signed:
            headers |= self._signer.headers(case.method, case.path, case.content, time.time())
        return self._client.request(case.method, case.path, content=case.content, headers=headers)

    def _is_taken(self, case: Case) -> bool:
        """Whether it asks for an id that an earlier one got: few odd ids are valid ones."""
        return json.loads(case.content)["job_id"] in self.outcome.runs

    def _started(self, case: Case, told: Any) -> None:
        if case.records:
            self.outcome.recorded.add(told["job_id"])
            self._control.cancel(told["job_id"], "that was all")
        if case.route not in STARTS:
            return
        ids = [one["job_id"] for one in told["members"] if one["submission"]] if "members" in told else [told["job_id"]]
        self.outcome.runs.update(ids)
        if case.route == "fork":
            self.outcome.recorded.update(ids)
            self._control.cancel(ids[0], "that was all")


@contextmanager
def whole_after(control: LedgerControl, outcome: Outcome) -> Iterator[set[str]]:
    """Afterwards runs and ledger have what was accepted and nothing else; the caller fills in what runs there are."""
    runs: set[str] = set()
    yield runs
    assert not outcome.wrong, "\n".join(outcome.wrong)
    assert runs == outcome.runs, f"not told of {runs - outcome.runs}, not there {outcome.runs - runs}"
    jobs = {job.job_id for job in control.jobs()}
    assert jobs == outcome.recorded | {PARENT}
    for job_id in jobs:
        assert control.segments(job_id), f"{job_id} has no segment"
    snapshot: Snapshot = control.snapshot()
    assert [job.job_id for job in snapshot.jobs] == [PARENT], "what was cancelled is gone, and the parent still trains"
