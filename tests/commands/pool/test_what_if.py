"""`elastic what-if` against a real control API."""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

from elastic_core.commands.pool.what_if_command import app
from elastic_core.control.plane import LedgerControl
from elastic_core.errors import NotFound, UserError
from elastic_core.spec.job_changes import JobChanges
from tests.builders import FACTS, FakeClock, Life, a_spec, an_observation


@pytest.fixture
def busy(control: LedgerControl, clock: FakeClock) -> LedgerControl:
    """job-a holds all four slots, at ten samples a second a slot; job-b waits for two, and cannot have them before."""
    control.submit("job-a", a_spec(slots=(4, 4)), FACTS)
    order = Life(control, control.trainer, "job-a").start()
    clock.advance(10.0)
    control.trainer(order.token).observe([an_observation(100, order)])
    control.submit("job-b", a_spec(slots=(2, 2)), FACTS)
    control.acquire("job-b__seg_0")
    return control


def elastic(*arguments: str) -> str:
    done = CliRunner().invoke(app, list(arguments), catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.stdout


def test_two_more_slots_let_a_job_start_now_that_would_wait_for_an_end(busy: LedgerControl) -> None:
    before = busy.snapshot()
    said = elastic("--add", "cpu:2")
    row = next(line for line in said.splitlines() if line.startswith("job-b"))
    assert row.split()[1] == "in"
    assert "now" in row
    assert ": under fair_share; changed: under the same policy." in said
    told = json.loads(elastic("--add", "cpu:2", "--json"))
    (a, b) = told["jobs"]
    assert (a["job_id"], a["as_it_is"]["starts_at"], a["as_it_is"]["most_slots"]) == ("job-a", told["at"], 4)
    assert b["as_it_is"]["starts_at"] == a["as_it_is"]["ends_at"]
    assert b["changed"]["starts_at"] == told["at"]
    assert busy.snapshot() == before


def test_the_first_jobs_are_shown_and_how_long_it_takes_is_said_before(busy: LedgerControl) -> None:
    done = CliRunner().invoke(app, ["--limit", "1"], catch_exceptions=False)
    assert done.stderr.splitlines() == ["simulating 2 jobs: about 0.2 s, 10 s at most"]
    rows = [line.split()[0] for line in done.stdout.splitlines() if line.startswith("job-")]
    assert rows == ["job-a"]
    assert "1 more of 2: --limit 2 shows all" in done.stdout
    assert "mean of 2 jobs: " in done.stdout
    both = CliRunner().invoke(app, ["--policy", "fixed"], catch_exceptions=False)
    assert "about 0.4 s, 20 s at most" in both.stderr
    assert "more of" not in both.stdout


def test_who_can_no_longer_run_never_starts(busy: LedgerControl) -> None:
    told = elastic("--without", "node-b")
    assert "never" in next(line for line in told.splitlines() if line.startswith("job-a"))


def test_a_job_that_may_have_less_makes_room_for_who_waits(busy: LedgerControl) -> None:
    told = json.loads(elastic("--job", "job-a:min=2,max=2", "--json"))
    a, b = told["jobs"]
    assert b["as_it_is"]["starts_at"] == a["as_it_is"]["ends_at"]
    assert b["changed"]["starts_at"] < told["at"] + 60.0
    assert (a["as_it_is"]["moves"], a["changed"]["moves"]) == (0, 1)


def test_another_policy_is_asked_in_place_of_the_one_in_force(busy: LedgerControl) -> None:
    """`fixed` never moves who runs; who shares fairly has job-a make room as soon as it may have less."""
    busy.set_job("job-a", JobChanges(min_slots=1))
    told = json.loads(elastic("--policy", "fixed", "--json"))
    assert (told["policy"], told["changed_policy"]) == ("fair_share", "fixed")
    moves = [(job["as_it_is"]["moves"], job["changed"]["moves"]) for job in told["jobs"]]
    assert moves[0][0] > 0
    assert moves[0][1] == 0


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (("--add", "gpu"), r"--add is 'gpu'; it is TYPE:SLOTS or TYPE:SLOTSxNODES, such as gpu:4x2"),
        (("--add", "gpu:0"), "each number is at least 1"),
        (("--add", "gpu:9000x9000"), "more slots are too many: at most 10000"),
        (("--without", "node-z"), "there is no node 'node-z' to leave out; there are node-a, node-b"),
        (("--job", "job-a:max"), "--job is 'job-a:max'; it is JOB:max=4,min=1,priority=5"),
        (("--policy", "fixd"), "Did you mean 'fixed'?"),
    ],
)
def test_a_wrong_word_is_told_with_what_is_right(busy: LedgerControl, arguments: tuple[str, ...], problem: str) -> None:
    with pytest.raises(UserError, match=problem.replace("?", r"\?")):
        elastic(*arguments)


def test_of_a_job_that_is_not_there_or_has_ended_nothing_can_be_changed(busy: LedgerControl) -> None:
    with pytest.raises(NotFound):
        elastic("--job", "job-z:max=2")
    busy.cancel("job-a", "enough")
    with pytest.raises(UserError, match="job job-a is cancelled, and neither holds nor wants slots now"):
        elastic("--job", "job-a:max=2")
