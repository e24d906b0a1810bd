"""Odd specs by every way that takes one: accepted, or refused in words, at once, and nothing is left half done.

Ten thousand go through the API server as it is (nightly), some hundreds through the same app in the test's own process.
Ten thousand more go through the parser alone in tests/spec/test_bounds.py.
"""

from __future__ import annotations

import statistics
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from sqlalchemy import create_engine, text

import tests.airflow_home  # noqa: F401 - before what may import Airflow
from elastic_airflow.api_server import control_app
from elastic_core.control.ledger.database import Ledger
from elastic_core.control.plane import LedgerControl
from elastic_core.host.steady_clock import SteadyClock
from elastic_core.services.secrets import read_secret
from tests.builders import CONTROL_SECRET, TRAINER_SECRET, FakeClock, FakeJobRuns, a_control
from tests.control.serving import served
from tests.security.odd_specs.api_server import ApiServer, api_server
from tests.security.odd_specs.asking import Asking, a_parent, whole_after
from tests.security.odd_specs.cases import Drawn
from tests.spec.test_bounds import peak_bytes

FEW, MANY = 200, 10_000
MOST_SECONDS = 0.1  # of the server's processor, for each job that is asked for, the start of its run included
TRIES = 4
MOST_BYTES = 200e6


def anybody() -> None:
    """Lets everyone in."""


def test_odd_specs_are_accepted_or_refused_in_words_by_every_route(ledger_url: str, tmp_path: Path) -> None:
    runs, memory = FakeJobRuns(), peak_bytes()
    control = a_control(ledger_url, tmp_path, FakeClock(), runs)
    checkpoint = a_parent(control)
    app = control_app(control, control.settings, service_secret=CONTROL_SECRET, reads=anybody, writes=anybody)
    with served(app) as url:
        asking = Asking(url, "a-token", CONTROL_SECRET, control)
        for number in range(FEW):
            asking.ask(Drawn(number, checkpoint).case())
    with whole_after(control, asking.outcome) as there:
        there.update(runs.runs)
    control.close()
    assert {route for route, status in asking.outcome.answers if status == 200} >= {"submit", "named", "sweep", "fork"}
    assert peak_bytes() - memory <= MOST_BYTES


@pytest.mark.nightly
@pytest.mark.timeout(5400)
def test_ten_thousand_odd_specs_by_the_api_server(ledger_url: str, postgres_url: str, tmp_path: Path) -> None:
    """Airflow's own app and login, in a process of its own behind a socket. Prints what it measured."""
    with api_server(tmp_path, ledger_url, postgres_url) as server:
        settings = server.settings
        control = LedgerControl(Ledger(ledger_url, settings, SteadyClock(tmp_path)), settings, TRAINER_SECRET)
        checkpoint = a_parent(control)
        asking = Asking(server.url, server.token, read_secret(settings, "control").encode(), control)
        taken = [measured(server, asking, Drawn(number, checkpoint)) for number in range(MANY)]
        with whole_after(control, asking.outcome) as there:
            engine = create_engine(postgres_url)
            with engine.connect() as airflow:
                there.update(airflow.scalars(text("SELECT run_id FROM dag_run WHERE dag_id = 'elastic_job'")))
            engine.dispose()
        control.close()
    print(f"{MANY} cases: {dict(asking.outcome.answers)}")
    for accepted in (False, True):
        seconds = sorted(one.seconds for one in taken if one.accepted is accepted)
        print(f"{'accepted' if accepted else 'refused'}: {len(seconds)}; ms of the server's processor: mean "
              f"{1e3 * statistics.mean(seconds):.1f}, 99 % within {1e3 * seconds[len(seconds) * 99 // 100]:.1f}, most "
              f"{1e3 * seconds[-1]:.1f}")  # fmt: skip
    print(f"taken again, for over {1e3 * MOST_SECONDS:.0f}: {[one.words[:100] for one in taken if one.tries > 1]}")
    print(f"MB of the server's memory by which one case rose: most {max(one.memory for one in taken) / 1e6:.1f}")
    assert [one.words for one in taken if one.seconds > MOST_SECONDS or one.memory > MOST_BYTES] == []


@dataclass(frozen=True, slots=True)
class Taken:
    """Of the server: seconds of the processor for each job that was asked for, and bytes by which its memory rose."""

    seconds: float
    memory: int
    accepted: bool
    words: str
    tries: int


def measured(server: ApiServer, asking: Asking, drawn: Drawn) -> Taken:
    """Where it took long, the least of so many tries: a garbage collection, or a decision, may fall into one."""
    tries: list[Taken] = []
    while not tries or (len(tries) < TRIES and tries[-1].seconds > MOST_SECONDS):
        case = Drawn(drawn.number, drawn.checkpoint, len(tries)).case()
        memory, began = server.forget_peak(), server.cpu_seconds()
        status = asking.ask(case)
        seconds = (server.cpu_seconds() - began) / case.jobs
        words = f"case {drawn.number}, {status} after {seconds:.3f} s: {case}"[:1000]
        tries.append(Taken(seconds, server.peak_bytes() - memory, status == 200, words, len(tries) + 1))
    return replace(min(tries, key=lambda one: one.seconds), tries=len(tries))
