"""Observations on their way to the control plane, against a real ledger in a folder."""

from __future__ import annotations

import time
from dataclasses import replace

import pytest

from elastic_core.domain import Observation
from elastic_core.errors import Conflict, InfrastructureError
from elastic_core.protocol.trainer import check_observations
from tests.train.ledger import FolderLedger


def observation(step: int) -> Observation:
    return Observation(
        step=step, samples=step, at=0.0, epoch=0.0, num_slots=1, num_nodes=1, type="cpu", global_batch=1, local_batch=1,
        accumulation=1, step_seconds=0.1, sync_seconds=0.0, samples_per_second=10.0, loss=1.0, learning_rate=0.1,
    )  # fmt: skip


def test_observations_wait_out_an_outage_in_order_and_never_block(ledger, start_link):
    ledger.set(away=True)
    link, *_ = start_link()
    began = time.monotonic()
    for step in range(50):
        link.observations.add(observation(step))
    assert time.monotonic() - began < 0.5
    assert link.observations.flush(0.2) is False
    ledger.set(away=False)
    assert link.observations.flush(5.0) is True
    assert [one.step for one in ledger.observations()] == list(range(50))


def test_only_a_thousand_observations_wait(ledger, start_link):
    ledger.set(away=True)
    link, *_ = start_link(heartbeat_seconds=30.0)
    for step in range(1500):
        link.observations.add(observation(step))
    assert len(link.observations._queue) <= 1000


@pytest.mark.parametrize("error", [Conflict("no"), InfrastructureError("away")])
def test_refused_observations_are_dropped_and_those_not_taken_are_kept(ledger, start_link, error):
    class Refuses(FolderLedger):
        tries = 0

        def observe(self, observations):
            Refuses.tries += 1
            if Refuses.tries < 3:
                raise error
            super().observe(observations)

    link, *_ = start_link(lambda token: Refuses(ledger.folder, token))
    link.observations.add(observation(1))
    assert link.observations.flush(5.0)
    assert len(ledger.observations()) == (0 if isinstance(error, Conflict) else 1)


def test_what_waited_out_an_outage_goes_out_in_calls_that_the_control_plane_takes(ledger, start_link):
    calls: list[int] = []

    class Counts(FolderLedger):
        def observe(self, observations):
            check_observations(observations)
            super().observe(observations)
            calls.append(len(observations))

    ledger.set(away=True)
    link, *_ = start_link(lambda token: Counts(ledger.folder, token))
    for step in range(100):
        link.observations.add(replace(observation(step), metrics={str(n): 0.0 for n in range(1_000)}))
    ledger.set(away=False)
    assert link.observations.flush(30.0)
    assert [one.step for one in ledger.observations()] == list(range(100))
    assert sum(calls) == 100
    assert max(calls) == 20
