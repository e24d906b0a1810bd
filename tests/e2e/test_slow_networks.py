"""Two nodes joined by 100 Mbit, on the real services: a job that may choose its exchange is worth both of them, the
same job with the exact sum is not, and everybody who looks is told why. Jobs that may leave layers or small activations
out send less and are as complete as others."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from elastic_core.domain import AUTO, EXACT
from elastic_core.host import mlflow_access
from elastic_core.protocol.records import JobStatus
from elastic_core.spec import parse_cluster_spec
from elastic_core.spec.parts.job_comm import CLASSES
from tests.e2e.platform import CLUSTER, Platform, eventually
from tests.e2e.test_main_line import assert_read_exactly_once, finished, job_of, start, trains
from tests.e2e.test_resizes import SHARED_BYTES, a_long_job, end, hold
from tests.e2e.test_user_actions import page
from tests.node_networks import NodeNamespaces, skip_without_namespaces

pytestmark = pytest.mark.nightly  # tests/policy/horizon and tests/launch have its parts, in seconds

WIDE = "tests.e2e.tasks_for_tests:WideLine"  # 17 MB of gradients, 0.96 s of computing for 32 samples on one slot
LINK = 100e6  # bits a second: 1.3 s for the exact sum of two nodes
BOTH_NODES = {"node-a", "node-b"}
LINES, WINDOWS = 400, 1249  # samples of a data set
SMALL = {"width": 64, "depth": 2, "heads": 4, "context": 16, "train_bytes": 20_000, "milliseconds": 1}


@pytest.fixture
def apart(platform: Platform) -> Iterator[NodeNamespaces]:
    """The platform's pool is two nodes of one slot, each in a network namespace of its own."""
    skip_without_namespaces()
    eventually(lambda: not platform.control.jobs(active_only=True), 120, "no job is left of other tests")
    file = platform.settings.cluster
    assert file is not None
    with NodeNamespaces(2, LINK) as nodes:
        file.write_text(json.dumps(nodes.cluster(slots=1)))
        platform.control.set_cluster(parse_cluster_spec(nodes.cluster(slots=1)))
        try:
            yield nodes
        finally:
            for job in platform.control.jobs(active_only=True):
                end(platform, job.job_id)
            eventually(lambda: not platform.control.jobs(active_only=True), 120, "no job is left")
            file.write_text(json.dumps(CLUSTER))
            platform.control.set_cluster(parse_cluster_spec(CLUSTER))


def a_wide_job(name: str, comm: dict[str, Any], **more: Any) -> dict[str, Any]:
    params = {"samples": LINES, "milliseconds": 30, "width": 2048}
    return {**a_long_job(name, {"min": 1, "max": 2}, entry_point=WIDE, params=params, comm=comm), **more}


def sent_by_job_on_both_nodes(platform: Platform, nodes: NodeNamespaces, samples: int, spec: dict[str, Any]) -> int:
    """Bytes over the link, of a job that trains on all of the pool to its end and read each sample once."""
    before = nodes.sent_bytes()
    start(platform, {**spec, "audit": "full"})
    finished(platform, spec["name"], 400)
    ran = [segment.allocation for segment in platform.control.segments(spec["name"]) if segment.allocation]
    assert {slot.node for allocation in ran for slot in allocation.slots} == BOTH_NODES
    assert_read_exactly_once(platform, spec["name"], samples)
    return nodes.sent_bytes() - before


def settled(platform: Platform, job_id: str) -> JobStatus | None:
    """The job once it has chosen on two slots, and a decision has told what it kept."""
    job = job_of(platform, job_id)
    if job is None or job.exchange is None or job.exchange.num_slots != 2:
        return None
    return job if "exchanging by" in (job.target_reason or "") else None


def test_a_cheaper_exchange_earns_a_job_the_second_node_that_the_exact_sum_does_not(
    platform: Platform, apart: NodeNamespaces
) -> None:
    start(platform, a_wide_job("by-sum", {"algorithm": EXACT}))
    eventually(lambda: trains(platform, "by-sum", 1), 400, "the exact sum over both nodes is found not to pay")
    slow = [point for job in platform.control.snapshot().jobs for point in job.profile if point.num_nodes == 2]
    assert {point.comm for point in slow} == {EXACT}, "it was on both"
    end(platform, "by-sum")

    holder = hold(platform, "by-choice", 1)
    start(platform, a_wide_job("by-choice", {"algorithm": AUTO, "allow": "lossy"}))
    eventually(lambda: trains(platform, "by-choice", 1), 180, "the job trains on the slot that is left")
    assert "nothing is exchanged on 1 slot" in platform.elastic("jobs", "show", "by-choice").stdout
    platform.give_back_slots(holder)
    job: JobStatus = eventually(lambda: settled(platform, "by-choice"), 400, "it has grown, chosen and been told why")

    assert job.allocation is not None
    assert job.exchange is not None
    assert {slot.node for slot in job.allocation.slots} == BOTH_NODES
    assert job.allocation.comm == AUTO
    chosen = job.exchange.algorithm
    figures = {tried.algorithm: tried for tried in job.exchange.figures}
    assert chosen != EXACT
    assert figures[chosen].measured_seconds < 0.8 * figures[EXACT].measured_seconds
    assert figures[chosen].measured_bytes < 0.8 * figures[EXACT].measured_bytes
    (view,) = [known for known in platform.control.snapshot().jobs if known.job_id == "by-choice"]
    reports = {point.comm: point.count for point in view.profile if point.num_nodes == 2}
    assert reports[chosen] > reports[EXACT] > 0
    assert set(reports) <= set(figures)
    assert job.target_reason.split("; ")[-1].startswith(f"exchanging by {chosen} there, a step ")

    show = platform.elastic("jobs", "show", "by-choice").stdout
    (shown,) = [known for known in page(platform)["jobs"] if known["job_id"] == "by-choice"]
    for told in (show, shown["comm"]):
        assert f"auto (lossy): {chosen} on 2 slots" in told
        assert f"of {EXACT}" in told
    assert f"exchanging by {chosen} there" in show
    assert f"exchanging by {chosen} there" in shown["reason"]
    tag = eventually(lambda: tag_of(platform, "by-choice"), 60, "MLflow is told")
    assert tag.startswith(f"{chosen} on 2 slots")


def test_sizes_of_buckets_are_tried_where_layers_can_be_sent_one_by_one(
    platform: Platform, apart: NodeNamespaces
) -> None:
    params = {"samples": LINES, "milliseconds": 10, "width": 1024, "layers": 5}  # four matrices of 4 MB
    spec = a_wide_job("by-size", {"algorithm": AUTO, "allow": "lossy"}, slots={"min": 2, "max": 2}, params=params)
    start(platform, spec)
    job: JobStatus = eventually(lambda: with_exchange(platform, "by-size"), 400, "it has chosen")
    assert job.exchange is not None
    (chosen,) = [tried for tried in job.exchange.figures if tried.algorithm == job.exchange.algorithm]
    assert chosen.size_trials >= 1
    assert chosen.bucket_bytes is not None
    size = f"in buckets of {chosen.bucket_bytes / (1 << 20):g} MiB, the best of {chosen.size_trials + 1} sizes"
    assert size in platform.elastic("jobs", "show", "by-size").stdout
    (shown,) = [known for known in page(platform)["jobs"] if known["job_id"] == "by-size"]
    assert size in shown["comm"]


def test_a_job_that_may_average_weights_does_on_a_slow_link_and_everybody_is_told_what_that_is(
    platform: Platform, apart: NodeNamespaces
) -> None:
    params = {"samples": LINES, "milliseconds": 1, "width": 1024}  # 4 MB of gradients, and nearly no computing
    spec = a_wide_job(
        "by-average", {"algorithm": AUTO, "allow": "averaging"}, slots={"min": 2, "max": 2}, params=params
    )
    start(platform, spec)
    job: JobStatus = eventually(lambda: with_exchange(platform, "by-average"), 400, "it has chosen")
    assert job.exchange is not None
    assert CLASSES[job.exchange.algorithm] == "averaging"
    said = (
        f"auto (averaging): {job.exchange.algorithm} on 2 slots (weights are averaged: the same samples may teach less)"
    )
    (shown,) = [known for known in page(platform)["jobs"] if known["job_id"] == "by-average"]
    for told in (platform.elastic("jobs", "show", "by-average").stdout, shown["comm"]):
        assert said in told
        assert f"of {EXACT}" in told


def with_exchange(platform: Platform, job_id: str) -> JobStatus | None:
    job = job_of(platform, job_id)
    return job if job is not None and job.exchange is not None else None


def test_ranks_that_go_back_through_a_part_of_the_layers_each_send_three_quarters(
    platform: Platform, apart: NodeNamespaces
) -> None:
    more = {
        "slots": {"min": 2, "max": 2},
        "params": {"samples": LINES, "milliseconds": 5, "width": 512, "layers": 5},  # four matrices of 1 MB
        "work": {"samples": 3_200},
    }
    exact = a_wide_job("all-layers", {"algorithm": EXACT}, **more)
    part = a_wide_job("part-of-layers", {"algorithm": "partial_backward", "allow": "partial"}, **more)
    sent = {spec["name"]: sent_by_job_on_both_nodes(platform, apart, LINES, spec) for spec in (exact, part)}
    assert 0.6 < sent["part-of-layers"] / sent["all-layers"] < 0.85, sent
    show = platform.elastic("jobs", "show", "part-of-layers").stdout
    assert "partial_backward (partial)" in show


def test_stages_on_a_slow_link_send_their_greatest_activations(platform: Platform, apart: NodeNamespaces) -> None:
    more = {
        "slots": {"min": 2, "max": 2},
        "entry_point": SHARED_BYTES,
        "params": SMALL,
        "layouts": {"pipeline": [2]},
        "work": {"samples": 6_400},
    }
    whole = a_wide_job("whole-activations", {"algorithm": EXACT}, **more)
    greatest = a_wide_job("greatest-activations", {"stage_ratio": 8}, **more)
    sent = {spec["name"]: sent_by_job_on_both_nodes(platform, apart, WINDOWS, spec) for spec in (whole, greatest)}
    assert sent["greatest-activations"] < 0.6 * sent["whole-activations"], sent
    show = platform.elastic("jobs", "show", "greatest-activations").stdout
    assert "activations between stages up to 8 times smaller" in show


def tag_of(platform: Platform, job_id: str) -> str | None:
    """What MLflow says of the job's exchange."""
    headers = {"authorization": mlflow_access.authorization(platform.settings)}
    with httpx.Client(base_url=f"{platform.settings.tracking_uri()}/api/2.0/mlflow", headers=headers) as mlflow:
        found = mlflow.post("/experiments/search", json={"max_results": 1000}).raise_for_status().json()
        ids = [experiment["experiment_id"] for experiment in found["experiments"]]
        runs = mlflow.post("/runs/search", json={"experiment_ids": ids, "max_results": 1000}).raise_for_status().json()
    tags = [{tag["key"]: tag["value"] for tag in run["data"].get("tags", ())} for run in runs.get("runs", ())]
    return next((own["elastic.exchange"] for own in tags if "elastic.exchange" in own), None)
