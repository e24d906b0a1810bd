"""A job whose exchange is chosen by measurement: resized, every sample read once, every report of one algorithm."""

from __future__ import annotations

from elastic_core.comm.algorithms import NAMES
from elastic_core.train.data.audit import prove
from tests.node_networks import NodeNamespaces, skip_without_namespaces

BATCH = 12


def test_a_job_that_chooses_its_exchange_is_resized_and_reads_every_sample_once(new_job):
    job = new_job("auto", spec={"comm": {"algorithm": "auto", "allow": "lossy"}, "audit": "full"}, total=1200)
    for world in (2, 3, 1):
        assert job.run(world, BATCH, segment_steps=25) == [0] * world, job.logs()
    assert job.run(2, BATCH) == [0, 0], job.logs()
    commits, reports = job.ledger.commits(), job.ledger.observations()
    assert commits[-1].finished
    assert all(verdict.proven for verdict in prove([c.fingerprints for c in commits], job.rows)[:-1])
    assert {report.comm for report in reports} <= set(NAMES)
    choices = [report.choice for report in reports if report.choice is not None]
    assert [choice.num_slots for choice in choices] == [2, 3, 2], "one rank has none to make"
    for choice in choices:
        figures = {figures.algorithm: figures for figures in choice.figures}
        assert figures["allreduce"].measured_seconds > 0
        assert figures[choice.algorithm].measured_seconds <= figures["allreduce"].measured_seconds


def test_with_the_exact_sum_alone_it_computes_what_the_exact_job_does(new_job):
    curves = []
    for algorithm in ("allreduce", "auto"):
        job = new_job(algorithm, spec={"comm": {"algorithm": algorithm}})
        assert job.run(2, BATCH) == [0, 0], job.logs()
        assert {report.comm for report in job.ledger.observations()} == {"allreduce"}
        curves.append(job.curve())
    assert curves[0] == curves[1]


def test_a_job_that_moves_from_one_node_to_two_chooses_again(new_job):
    """On one node bytes cost next to nothing; between two joined by 20 Mbit they are all that a step costs."""
    skip_without_namespaces()
    spec = {"entry_point": "tests.e2e.tasks_for_tests:WideLine", "comm": {"algorithm": "auto", "allow": "lossy"}}
    params = {"samples": 96, "milliseconds": 2, "width": 256}
    job = new_job("moves", entry="of its own", tasks="tests.*", params=params, spec=spec, total=4800)
    with NodeNamespaces(2, 20e6) as nodes:
        first, second = zip(nodes.names, nodes.addresses, strict=True)
        for places in ([first, first], [first, second]):
            job.places = places
            assert job.run(2, BATCH, segment_steps=25) == [0, 0], job.logs()
    near, far = (report.choice for report in job.ledger.observations() if report.choice is not None)
    exact = [next(known for known in choice.figures if known.algorithm == "allreduce") for choice in (near, far)]
    assert exact[1].measured_seconds > 2 * exact[0].measured_seconds
    assert far.algorithm != "allreduce"
    assert min(known.measured_bytes or 1e9 for known in far.figures) < 0.6 * exact[1].measured_bytes
    assert {report.comm for report in job.ledger.observations()} > {"allreduce"}
