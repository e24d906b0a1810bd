"""Stages that a slow link joins send each other less, if the job says so, and it learns."""

from __future__ import annotations

import pytest

from elastic_core.domain import Layout
from elastic_core.train.data.audit import prove
from tests.node_networks import NodeNamespaces, skip_without_namespaces
from tests.train.job import Job

# So many steps that the probe of the link is the less: up to 1.1 MB where its bucket of tokens was full, of 3.3 MB.
ROWS, BATCH, STEPS = 1249, 32, 24
PARAMS = {"width": 64, "depth": 2, "heads": 4, "context": 8, "train_bytes": 10_000, "learning_rate": 1e-2}
IN_STAGES = Layout(pipeline=2)


def a_job(new_job, name: str, comm: dict[str, object]) -> Job:
    spec = {"comm": comm, "layouts": {"pipeline": [1, 2]}, "audit": "full"}
    job: Job = new_job(name, entry="bytes_in_32", rows=ROWS, total=BATCH * STEPS, params=PARAMS, spec=spec)
    return job


def losses(job: Job) -> list[float]:
    return [float.fromhex(loss) for _, loss in sorted(job.curve(1).items())]


@pytest.mark.nightly
def test_on_a_slow_link_fewer_bytes_are_sent_and_every_sample_is_read_once(new_job):
    skip_without_namespaces()
    sent = {}
    with NodeNamespaces(2, 4e6) as nodes:
        for name, comm in (("exact", {}), ("less", {"stage_ratio": 8})):
            job = a_job(new_job, name, comm)
            before = nodes.sent_bytes()
            job.places = list(zip(nodes.names, nodes.addresses, strict=True))
            assert job.run(2, BATCH, layout=IN_STAGES) == [0, 0], job.logs()
            assert job.ledger.commits()[-1].finished
            verdicts = prove([commit.fingerprints for commit in job.ledger.commits()], ROWS)
            assert [(verdict.count, verdict.problem) for verdict in verdicts] == [(BATCH * STEPS, "")]
            sent[name] = nodes.sent_bytes() - before
            learnt = losses(job)
            assert learnt[-1] < learnt[0]
    assert sent["less"] < 0.7 * sent["exact"], sent
