"""What a fork's spec takes from its parent's, and what it may not change."""

from __future__ import annotations

from typing import Any

import pytest

from elastic_core.errors import UserError
from elastic_core.spec.job_forks import fork_id, forked_spec
from tests.builders import a_spec


def test_what_is_left_out_is_the_parents() -> None:
    parent = a_spec(params={"width": 3}, seed=5, queue="default", comm={"algorithm": "bytegrad"})
    assert forked_spec(parent, {}) == parent
    whole = parent.model_dump(mode="json")
    assert forked_spec(parent, whole) == parent
    changed = forked_spec(parent, {"priority": 3, "slots": {"max": 2}, "registered_model": "mine"})
    assert changed == parent.model_copy(
        update={"priority": 3, "slots": parent.slots.model_copy(update={"max": 2}), "registered_model": "mine"}
    )


def test_an_amount_of_work_replaces_the_other_kind_of_it() -> None:
    parent = a_spec(work={"samples": 100, "target_loss": 0.5})
    work = forked_spec(parent, {"work": {"epochs": 2.5}}).work
    assert (work.epochs, work.samples, work.target_loss) == (2.5, None, 0.5)
    assert forked_spec(parent, {"work": {"target_loss": 0.2}}).work.samples == 100
    with pytest.raises(UserError, match="give one of the two"):
        forked_spec(parent, {"work": {"epochs": 2, "samples": 5}})


def test_the_base_batch_stays_where_the_smallest_changes() -> None:
    """The learning rate is tuned for it, and progress is counted in it."""
    parent = a_spec(batch=(16, 256))
    assert forked_spec(parent, {"batch": {"min": 8}}).batch.base == 16
    assert forked_spec(parent, {"priority": 1}).batch.base is None
    with pytest.raises(UserError, match="base 16 is outside the range"):
        forked_spec(parent, {"batch": {"min": 32}})
    with pytest.raises(UserError, match=r"another batch\.base"):
        forked_spec(parent, {"batch": {"min": 8, "base": 8}})


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"seed": 1, "params": {"x": 1}}, "another params, seed than its parent"),
        ({"entry_point": "examples.digits:Other"}, "another entry_point than"),
        ({"work": {"measure": "progress"}, "batch": {"learning_rate_rule": "adascale"}}, r"another work\.measure than"),
        ({"layouts": {"tensor": [2]}}, "layouts"),
        ({"colour": "red"}, "colour"),
        ({"slots": 3}, "slots"),
        ({"batch": 3}, "batch"),
        ({"work": None}, "work"),
    ],
)
def test_all_else_is_refused_in_words(changes: dict[str, Any], says: str) -> None:
    with pytest.raises(UserError, match=says):
        forked_spec(a_spec(), changes)


def test_an_id_is_made_of_the_name_or_the_checkpoint() -> None:
    assert fork_id(7, {}).startswith("fork-7-2")
    assert fork_id(7, {"name": "wider"}).startswith("wider-2")
    assert fork_id(7, {"name": 3}).startswith("fork-7-2")
