"""The process that simulates for `rpc.whatif`: one line of JSON in, one out. It opens no ledger, no file, no network.

The only module of the control plane that knows the simulator.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

from elastic_core import logs
from elastic_core.control.scheduling.policy_process import serve
from elastic_core.domain import Snapshot, from_json, to_json
from elastic_core.errors import ElasticError, UserError
from elastic_core.policy import registry
from elastic_core.protocol.calls import encode_error
from elastic_core.protocol.encoding import encode
from elastic_core.protocol.records import JobStatus, PastJob, PolicyInForce
from elastic_core.protocol.rest.what_if import WhatIf
from elastic_core.protocol.service import ServiceControl
from elastic_core.sim import projection
from elastic_core.sim.engine.engine import Options, simulate
from elastic_core.sim.replay import compared_with_past, pool_of

log = logs.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class _Seen:
    """What a projection asks of the control plane, as it was when the question was put."""

    seen: Snapshot
    in_force: PolicyInForce
    named: Mapping[str, JobStatus]

    def snapshot(self) -> Snapshot:
        return self.seen

    def policy(self) -> PolicyInForce:
        return self.in_force

    def job(self, job_id: str) -> JobStatus:
        return self.named[job_id]


def main() -> None:
    """The process: answers until its input ends, as `policy_process` does."""
    serve("what-if process", answer)


def answer(question: Mapping[str, Any]) -> bytes:
    """A line of JSON: the answer, or the error that was met."""
    try:
        return encode({"answer": _past(question) if "past" in question else _ahead(question)})
    except ElasticError as error:
        return encode({"error": encode_error(error).decode()})
    except MemoryError:
        wanted = UserError(
            "the simulation needs more memory than ELASTIC_DECIDE_MEMORY_MB gives it: ask of fewer jobs, or of another "
            "policy"
        )
        return encode({"error": encode_error(wanted).decode()})
    except Exception as error:
        log.exception("a simulation failed", policy=question.get("policy"))
        failed = ElasticError(f"the simulation failed: {type(error).__name__}: {error}")
        return encode({"error": encode_error(failed).decode()})


def _past(question: Mapping[str, Any]) -> dict[str, Any]:
    snapshot = from_json(Snapshot, question["snapshot"])
    past = [from_json(PastJob, job) for job in question["past"]]
    chosen, options = registry.get(question["policy"]), Options(max_decisions=question["most"])
    pool = pool_of(past, snapshot.nodes)
    comparison = compared_with_past(
        past, pool, snapshot.now, lambda loaded: [simulate(loaded, pool, chosen, options)],
        queues=snapshot.queues, settings={"jobs": question["jobs"]},
    )  # fmt: skip
    return comparison.to_json(timeline=False)


def _ahead(question: Mapping[str, Any]) -> Any:
    named = {job_id: from_json(JobStatus, status) for job_id, status in question["named"].items()}
    in_force = from_json(PolicyInForce, question["in_force"])
    seen = _Seen(from_json(Snapshot, question["snapshot"]), in_force, named)
    asked = from_json(WhatIf, question["asked"])
    return to_json(projection.what_if(cast(ServiceControl, seen), asked))  # it asks no more than `_Seen` has


if __name__ == "__main__":
    main()
