"""A pause is kept by whatever policy decides, and what it frees goes to the others."""

from __future__ import annotations

from dataclasses import replace

import pytest

from elastic_core.control.scheduling.asking import ask, carried_over
from elastic_core.policy import registry
from elastic_core.policy.rules.paused_jobs import without_paused
from tests.policy.builders import holding, job, nodes, snapshot

WORDS = "paused by ann: too dear"


def test_without_a_paused_job_the_snapshot_is_what_is_asked_with() -> None:
    before = snapshot(nodes(4), job("a"))
    assert without_paused(before)[0] is before


def test_no_policy_is_asked_about_a_paused_job_and_it_is_not_taken_for_finished() -> None:
    asked, targets = without_paused(snapshot(nodes(4), job("a", paused=WORDS), job("b")))
    assert [view.job_id for view in asked.jobs] == ["b"]
    assert asked.not_finished == ("a",)
    assert (targets["a"].num_slots, targets["a"].reason) == (0, WORDS)


@pytest.mark.parametrize("name", registry.names())
def test_every_policy_gives_a_paused_job_nothing_and_the_others_what_it_held(name: str) -> None:
    (node,) = nodes(4)
    running = replace(holding(job("a"), *node.slots()), paused=WORDS)
    plan = ask(registry.get(name), snapshot((node,), running, job("b", 1.0)))
    assert (plan.targets["a"].num_slots, plan.targets["a"].reason) == (0, WORDS)
    assert plan.targets["b"].num_slots >= 1


def test_a_plan_that_stays_for_want_of_an_answer_keeps_no_slots_for_a_job_that_was_paused_since() -> None:
    before = snapshot(nodes(4), job("a"))
    last = ask(registry.get("fair_share"), before)
    assert last.targets["a"].num_slots
    stays = carried_over(last, snapshot(nodes(4), job("a", paused=WORDS)), "no answer")
    assert (stays.targets["a"].num_slots, stays.targets["a"].reason) == (0, WORDS)
