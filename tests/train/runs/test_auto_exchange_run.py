"""A job whose exchange is chosen by measurement: resized, every sample read once, every report of one algorithm."""

from __future__ import annotations

from elastic_core.comm.algorithms import NAMES
from elastic_core.train.data.audit import prove

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
