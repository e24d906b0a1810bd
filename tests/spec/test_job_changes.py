"""What is set of a job stands in place of its spec, and is held to the rules that a spec is held to."""

from __future__ import annotations

import pytest

from elastic_core.errors import UserError
from elastic_core.spec.job_changes import AS_SUBMITTED, JobChanges
from tests.builders import a_spec


def test_what_is_set_replaces_what_the_spec_says_and_nothing_else() -> None:
    spec = a_spec(priority=1)
    changed = JobChanges(priority=7, max_slots=8).applied(spec)
    assert (changed.priority, changed.slots.min, changed.slots.max) == (7, 1, 8)
    assert changed.model_copy(update={"priority": 1, "slots": spec.slots}) == spec
    assert AS_SUBMITTED.applied(spec) is spec


def test_later_changes_keep_earlier_ones_of_other_things() -> None:
    assert JobChanges(max_slots=2).after(JobChanges(priority=3, max_slots=8)) == JobChanges(priority=3, max_slots=2)
    assert JobChanges(priority=3, max_slots=2).words == "priority 3, max slots 2"


def test_listed_counts_stay_the_only_ones_and_a_requested_one_goes_where_it_is_none_of_them() -> None:
    spec = a_spec(slots={"allowed": [1, 2, 4], "requested": 4})
    assert JobChanges(max_slots=3).applied(spec).slots.counts() == (1, 2)
    assert JobChanges(max_slots=3).applied(spec).slots.requested is None
    assert JobChanges(max_slots=8).applied(spec).slots.requested == 4


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        (JobChanges(min_slots=5), "min 5 is over max 4"),
        (JobChanges(priority=101), "priority"),
    ],
)
def test_what_contradicts_the_spec_is_refused_as_in_a_spec(changes: JobChanges, says: str) -> None:
    with pytest.raises(UserError, match=says):
        changes.applied(a_spec())


def test_limits_without_any_listed_count_are_refused_with_those_that_are_listed() -> None:
    with pytest.raises(UserError, match=r"allows \(1, 4\) is among 2 to 3"):
        JobChanges(min_slots=2, max_slots=3).applied(a_spec(slots={"allowed": [1, 4]}))
