"""What a job waits for, in words: one sentence of facts, and when it starts as whoever reads it sees it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from elastic_core.domain import Preemptor, PutFirst, from_json, to_json
from elastic_core.protocol.waiting.queued import HeldBy, InQueue, starts_words, waiting_words, words_of_need

NOW = 1_000_000.0
HOLDERS = (HeldBy(job_id="mine-dag", num_slots=2), HeldBy(job_id="slow-b", num_slots=2))


def by(rule: PutFirst, job_id: str = "urgent") -> Preemptor:
    return Preemptor(job_id=job_id, rule=rule, priority=10, queue="prod")


QUEUED = InQueue(
    place=1, length=2, needs=4, usable=4, free=0, held_by=HOLDERS, more_holders=0, preempted_by=(by(PutFirst.TURN),),
    starts_at=NOW + 600.0, unknown="", words=words_of_need(4, [4], 0, HOLDERS, 0, ()),
)  # fmt: skip


def test_who_holds_what_it_needs_is_named() -> None:
    assert QUEUED.words == "needs 4 of 4 slots; held by mine-dag (2) and slow-b (2)"
    assert (
        words_of_need(2, [4], 1, HOLDERS[:1], 3, ()) == "needs 2 of 4 slots; 1 is free; held by mine-dag (2) and 3 more"
    )


def test_slots_of_several_types_do_not_add_up() -> None:
    told = words_of_need(4, [4, 8], 3, HOLDERS[:1], 0, ())
    assert told == "needs 4 of 12 slots of one type; at most 3 are free; held by mine-dag (2)"


def test_a_pool_that_is_too_small_is_said_to_be() -> None:
    assert words_of_need(4, [2], 2, (), 0, ()) == "needs 4 slots, and the pool has at most 2 that it may use"
    assert words_of_need(4, [], 0, (), 0, ()) == "needs 4 slots, and the pool has none that it may use"


@pytest.mark.parametrize(
    ("rule", "why"),
    [
        (PutFirst.PRIORITY, "priority 10"),
        (PutFirst.DEADLINE, "its deadline"),
        (PutFirst.GUARANTEE, "guaranteed share of queue prod"),
        (PutFirst.TURN, "its turn after a long wait"),
        (PutFirst.STARTED, "not stopped right after its start"),
    ],
)
def test_who_preempted_it_and_by_which_rule_comes_first(rule: PutFirst, why: str) -> None:
    told = words_of_need(4, [4], 0, (), 0, (by(rule),))
    assert told == f"preempted by urgent ({why}); needs 4 of 4 slots"


def test_when_it_starts_is_said_as_of_now() -> None:
    assert waiting_words(QUEUED, NOW).startswith(f"{QUEUED.words}; starts about ")
    assert len(starts_words(QUEUED, NOW)) == len("starts about 22:50")
    assert len(starts_words(replace(QUEUED, starts_at=NOW + 10**5), NOW)) == len("starts about 1970-01-13 05:46")
    assert starts_words(QUEUED, NOW + 600.0) == "starts as soon as its slots are free"
    unknown = replace(QUEUED, starts_at=None, unknown="the pool has too few slots")
    assert starts_words(unknown, NOW) == "when it starts is not known: the pool has too few slots"


def test_it_goes_over_the_wire_unchanged() -> None:
    assert from_json(InQueue, to_json(QUEUED)) == QUEUED
