"""The platform in containers, built and started for real: `make docker-test`. Three sizes, one after another."""

from __future__ import annotations

import re
import subprocess
import time
from collections.abc import Iterator

import pytest

from tests.e2e.container_stack import ENGINE, ContainerStack, built_image, why_no_engine
from tests.e2e.platform import PATIENCE
from tests.required import lacks

HELD = (
    "every job finished", "every run in Airflow ended well", "every sample of every epoch was read exactly once"
)  # fmt: skip
DEMO_SECONDS = round(600 * PATIENCE)
pytestmark = pytest.mark.nightly
patient = pytest.mark.timeout(7200 * PATIENCE)  # an image is built, and a stack started, in one of the tests


@pytest.fixture(scope="module")
def image() -> str:
    if why := why_no_engine():
        lacks("containers", why)
    return built_image()


@pytest.fixture(
    scope="module", params=[("small", "scheduler"), ("full", "celery-worker"), ("ray", "ray-node-1")],
    ids=["small", "full", "ray"],
)  # fmt: skip
def stack(request: pytest.FixtureRequest, image: str) -> Iterator[ContainerStack]:
    """Up and healthy, gone with its volumes afterwards."""
    stack = ContainerStack.of(*request.param, image)
    try:
        stack.up()
        stack.wait_healthy(420)
        yield stack
    finally:
        stack.down()


def demo(stack: ContainerStack) -> subprocess.Popen[str]:
    """The demo against the services that run, from a container that trains nothing."""
    command = [
        *(*ENGINE, "exec", stack.container("tracker"), "python", "-m", "examples.demo", "--running"),
        *("--seconds", str(DEMO_SECONDS)),
    ]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def finish(stack: ContainerStack, process: subprocess.Popen[str]) -> str:
    """What it printed. Which sizes jobs had and what they learnt in the time is the machine's matter, and not asked."""
    output, _ = process.communicate(timeout=DEMO_SECONDS + 300)
    missing = [words for words in HELD if f"yes {words}" not in output]
    assert not missing, f"{missing}\n{output}\n{stack.tails()}"
    return output


def job_ids(output: str) -> list[str]:
    return re.findall(r"^(\S+): examples\.", output, re.M)


@patient
def test_the_demos_jobs_become_registered_models(stack: ContainerStack) -> None:
    output = finish(stack, demo(stack))
    registered = [stack.elastic("jobs", "show", job)["results"]["registration"] for job in job_ids(output)]
    assert [each["version"] for each in registered] == ["1"] * 4


@patient
def test_jobs_go_on_when_the_container_that_trains_is_killed(stack: ContainerStack) -> None:
    running = demo(stack)
    try:
        deadline = time.monotonic() + DEMO_SECONDS
        while not (training := in_the_middle(stack)):
            assert running.poll() is None, running.communicate()[0]
            assert time.monotonic() < deadline, f"nothing trains\n{stack.tails()}"
            time.sleep(2.0)
        stack.kill(stack.trains)
        output = finish(stack, running)
    finally:
        running.kill()
    assert set(training) <= set(job_ids(output))
    lost = [job for job in training if any(segment["attempt"] for segment in stack.elastic("jobs", "segments", job))]
    assert lost, "the kill cost no attempt: nothing was training"


def in_the_middle(stack: ContainerStack) -> list[str]:
    """Active jobs of which a fifth to four fifths is done, in a segment that runs."""
    return [
        job["job_id"]
        for job in stack.elastic("jobs", "list", "--active")
        if job["state"] == "active"
        and job["segment_state"] == "running"
        and 0.2 < job["done_samples"] / job["total_samples"] < 0.8
    ]


@patient
def test_nothing_is_published_but_on_loopback_and_no_secret_is_in_an_environment(stack: ContainerStack) -> None:
    for service in stack.services():
        container = stack.container(service)
        ports = stack.engine("inspect", "--format", "{{json .HostConfig.PortBindings}}", container).stdout
        assert set(re.findall(r'"HostIp":"([^"]*)"', ports)) <= {"127.0.0.1"}, service
    secrets = stack.inside(
        "tracker",
        "sh",
        "-c",
        "cd /var/lib/elastic/secrets && cat control trainer postgres redis s3 mlflow jwt; cat ../ray/token || true",
    ).split()
    facts = stack.engine("inspect", *map(stack.container, stack.services())).stdout
    assert [secret for secret in secrets if secret in facts] == []
