"""A job whose exchange is chosen by measurement: resized, every sample read once, every report of one algorithm."""

from __future__ import annotations

import os
import signal
import time
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest

from elastic_core.comm.algorithms import NAMES
from elastic_core.domain import ExchangeNeeds
from elastic_core.domain.exchange_costs import WORTH
from elastic_core.predict.speed.exchange_forecast import Links, as_of_one_rank, forecast_of
from elastic_core.predict.speed.kept_exchange import TRIAL_REPORTS
from elastic_core.predict.speed.step_form import Shapes
from elastic_core.spec.parts.job_comm import CLASSES
from elastic_core.state.format.manifest import read_manifest
from elastic_core.state.stores.local_store import LocalStore
from elastic_core.train.data.audit import prove
from tests.node_networks import NodeNamespaces, skip_without_namespaces
from tests.policy.builders import limits
from tests.train import forked
from tests.train.job import Job

BATCH = 12
SLOW_LINK = 3e5  # bits a second: the exact sum of a step takes two, low-rank products of it a quarter of one
EVERY_20 = {"interval_seconds": None, "interval_steps": 20}


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
    told = [(needs.num_slots, needs.type, {cost.algorithm for cost in needs.costs}) for needs in
            (choice.needs for choice in choices) if needs is not None]  # fmt: skip
    lossy = {"allreduce", "fp16", "bf16", "bytegrad", "powersgd"}
    assert told == [(2, "cpu", lossy), (3, "cpu", lossy), (2, "cpu", lossy)], "for decisions about other slots"
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
    met = replace(far.needs, num_nodes=2)  # the order of these tests names one node for all slots
    algorithm, seconds = expected_between_nodes(near.needs, met, computing=exact[0].measured_seconds)
    assert algorithm != "allreduce"
    assert exact[1].measured_seconds / 2 < seconds < exact[1].measured_seconds * 2


def expected_between_nodes(told: ExchangeNeeds, met: ExchangeNeeds, computing: float) -> tuple[str, float]:
    """What a decision would have counted with for two ranks on two nodes, and what a step by the exact sum takes then:
    by what they told on one node, and the link that others met."""
    costs, links = {cost.algorithm: cost for cost in told.costs}, {"cpu": Links(between=as_of_one_rank(met))}
    forecast = forecast_of(costs, links, limits(comm="auto", comm_allow="lossy"))
    shapes = Shapes(*(np.asarray([value]) for value in (2, 2, BATCH // 2, 1, 0)))
    expected = forecast.expected(("cpu",), shapes, np.asarray([computing]))
    return forecast.costs[int(expected.chosen[0])].algorithm, float(expected.seconds[0] * expected.gain[0])


def averaging_allowed(new_job, name: str, total: int) -> Job:
    spec = {
        "entry_point": "tests.e2e.tasks_for_tests:WideLine",
        "comm": {"algorithm": "auto", "allow": "averaging"},
        "checkpoints": EVERY_20,
        "audit": "full",
    }
    params = {"samples": 96, "milliseconds": 2, "width": 128}
    return new_job(name, entry="of its own", tasks="tests.*", params=params, spec=spec, total=total)


@pytest.mark.nightly
def test_where_averages_are_allowed_a_slow_link_is_given_one(new_job):
    skip_without_namespaces()
    job = averaging_allowed(new_job, "averages", total=1200)
    with NodeNamespaces(2, SLOW_LINK) as nodes:
        job.places = list(zip(nodes.names, nodes.addresses, strict=True))
        assert job.run(2, BATCH) == [0, 0], job.logs()
    commits, reports = job.ledger.commits(), job.ledger.observations()
    assert commits[-1].finished
    assert all(verdict.proven for verdict in prove([c.fingerprints for c in commits], job.rows)[:-1])
    (choice,) = [report.choice for report in reports if report.choice is not None]
    assert CLASSES[choice.algorithm] == "averaging", choice
    figures = {figures.algorithm: figures for figures in choice.figures}
    gradients = [known.measured_seconds for name, known in figures.items() if CLASSES[name] != "averaging"]
    assert figures[choice.algorithm].measured_seconds <= WORTH * min(took for took in gradients if took is not None)
    counts = Counter(report.comm for report in reports)
    assert set(counts) <= set(NAMES)
    others = [name for name in counts if name not in (choice.algorithm, "allreduce")]
    assert all(counts[name] <= (1 if CLASSES[name] == "averaging" else TRIAL_REPORTS) for name in others)
    for commit in commits:
        names = read_manifest(LocalStore(job.store), commit.uri).tensors
        assert not [name for name in names if name.startswith(("comm/", "averaging/"))], "nothing is a rank's own"


@pytest.mark.nightly
def test_killed_after_a_checkpoint_in_the_middle_of_a_trial_of_averages_it_goes_on_from_one_model(new_job):
    """The checkpoint of step 20 falls into it, however many exchanges of gradients were tried before."""
    skip_without_namespaces()
    job = averaging_allowed(new_job, "killed", total=600)
    with NodeNamespaces(2, SLOW_LINK) as nodes:
        job.places = list(zip(nodes.names, nodes.addresses, strict=True))
        workers = job.start(2, BATCH)
        while not job.ledger.commits():
            assert all(worker.is_alive() for worker in workers), job.logs()
            time.sleep(0.01)
        os.kill(workers[1].pid, signal.SIGKILL)
        assert forked.join(workers) == [11, -signal.SIGKILL]
        assert [commit.step for commit in job.ledger.commits()] == [20]
    assert not [report.choice for report in job.ledger.observations() if report.choice is not None]
    job.places = []
    assert job.run(1, BATCH) == [0], job.logs()
    commits = job.ledger.commits()
    assert commits[-1].finished
    assert all(verdict.proven for verdict in prove([c.fingerprints for c in commits], job.rows)[:-1])
