"""A job spec is refused with every problem at once: path, value seen, what is allowed."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elastic_core.errors import UserError
from elastic_core.spec import JobSpec, parse_job_spec, total_samples
from elastic_core.spec.job import most_samples


def spec(**changes: Any) -> dict[str, Any]:
    return {
        "name": "digits",
        "entry_point": "examples.digits:Digits",
        "work": {"epochs": 3},
        "batch": {"min": 16, "max": 64},
        **changes,
    }


def refusal(**changes: Any) -> str:
    with pytest.raises(UserError) as caught:
        parse_job_spec(spec(**changes))
    return str(caught.value)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"batchs": {}}, "batchs: there is no such key; did you mean 'batch'? Allowed: audit, batch,"),
        (
            {"work": {"epoch": 3}},
            "work.epoch: there is no such key; did you mean 'epochs'? Allowed: epochs, max_samples, measure, patience, "
            "samples, target_loss",
        ),
        (
            {"work": {"epochs": 1, "max_samples": 5}},
            "work: max_samples (5) is given, but measure is 'samples', where epochs or samples say how many are read; "
            "leave max_samples out, or set measure: progress",
        ),
        ({"work": {"epochs": 1, "patience": 0}}, "work.patience: input should be greater than or equal to 1, seen 0"),
        (
            {"work": {"epochs": 1, "measure": "progress"}, "layouts": {"sharded": "either"}},
            "work.measure is 'progress', which is measured on parts of the global batch, each of which one slot "
            "computes with the whole model, and layouts may cut the model; possible are layouts left out, or measure: "
            "samples",
        ),
        (
            {"work": {"epochs": 1, "patience": 3}, "layouts": {"sharded": "either"}},
            "work.patience is 3, which evaluates the whole model in the middle of training",
        ),
        ({"slots": {"zzz": 3}}, "slots.zzz: there is no such key. Allowed: allowed, max, min, requested, types"),
        ({"work": {}}, "work: neither epochs nor samples is given; give one of the two"),
        ({"work": {"epochs": 1, "samples": 5}}, "work: both epochs (1) and samples (5) are given; give one of the two"),
        ({"batch": {"min": 8, "max": 4}}, "batch: min 8 is over max 4; min must be at most max"),
        (
            {"batch": {"min": 8, "max": 16, "base": 4}},
            "batch: base 4 is outside the range; it must be from min 8 to max 16",
        ),
        ({"slots": {"min": 4, "max": 2}}, "slots: min 4 is over max 2"),
        (
            {"slots": {"min": 2, "max": 4, "allowed": [1, 2, 8]}},
            "slots: allowed counts [1, 8] are outside min 2 to max 4",
        ),
        ({"slots": {"allowed": []}}, "slots: allowed is empty, so that no count is possible"),
        (
            {"slots": {"allowed": [1, 4], "requested": 3}},
            "requested 3 is not one of the counts that the job may have: 1, 4",
        ),
        (
            {"slots": {"max": 100}},
            "slots may be up to 100, and batch.max 64 is less than one sample for each; possible are",
        ),
        ({"segment": {"seconds": None}}, "segment: neither seconds nor steps ends a segment"),
        ({"work": {"epochs": float("inf")}}, "work.epochs: input should be a finite number, seen inf"),
        ({"name": "Digits CNN"}, "name: string should match pattern"),
        ({"name": "Digits CNN"}, "seen 'Digits CNN' (lower-case letters, digits and '-', at most 48 characters)"),
        ({"entry_point": "no colon"}, "(module:Class or module:function, from the operator's allow-list)"),
        ({"priority": 101}, "priority: input should be less than or equal to 100, seen 101"),
        ({"precision": "fp8"}, "precision: input should be 'fp32' or 'bf16', seen 'fp8'"),
    ],
)
def test_a_problem_says_path_value_and_what_is_allowed(changes: dict[str, Any], said: str) -> None:
    assert said in refusal(**changes)


def test_all_problems_are_listed_at_once() -> None:
    told = refusal(name="A", priority=1000, seed=-1, nmae="a")
    assert told.startswith("the job spec has 4 problems:\n- ")
    assert all(f"- {path}: " in told for path in ("name", "priority", "seed", "nmae"))


@pytest.mark.parametrize("data", [None, [], "digits", 3])
def test_what_is_no_object_is_a_user_error(data: Any) -> None:
    with pytest.raises(UserError, match="the job spec has 1 problem"):
        parse_job_spec(data)


@pytest.mark.parametrize(
    ("slots", "counts"),
    [
        ({}, (1,)),
        ({"min": 2}, (2,)),
        ({"max": 3}, (1, 2, 3)),
        ({"allowed": [4, 2]}, (2, 4)),
        ({"min": 1, "max": 8, "allowed": [2, 4]}, (2, 4)),
    ],
)
def test_the_ends_of_the_slot_range_follow_what_is_given(slots: dict[str, Any], counts: tuple[int, ...]) -> None:
    limits = parse_job_spec(spec(slots=slots)).limits()
    assert limits.slot_counts == counts
    assert limits.requested_slots == counts[-1]


@pytest.mark.parametrize(("base", "reference"), [(None, 16), (64, 64)])
def test_the_batch_that_a_samples_worth_is_counted_at_is_the_base_else_the_smallest(
    base: int | None, reference: int
) -> None:
    limits = parse_job_spec(spec(batch={"min": 16, "max": 256, "base": base})).limits()
    assert limits.base_batch == limits.reference_batch == limits.requested_batch == reference


def test_the_bound_on_efficiency_has_a_default_and_can_be_set() -> None:
    assert parse_job_spec(spec(batch={"min": 16, "max": 256})).limits().min_efficiency == 0.8
    assert parse_job_spec(spec(batch={"min": 16, "max": 256, "min_efficiency": 0.95})).limits().min_efficiency == 0.95


@pytest.mark.parametrize("least", [0.0, -0.5, 1.01, float("nan")])
def test_a_bound_on_efficiency_that_no_batch_can_be_held_to_is_refused(least: float) -> None:
    with pytest.raises(UserError, match=r"batch\.min_efficiency"):
        parse_job_spec(spec(batch={"min": 16, "max": 256, "min_efficiency": least}))


def test_a_deadline_without_an_offset_is_utc() -> None:
    deadline = parse_job_spec(spec(deadline="2030-01-31T18:00:00")).deadline
    assert deadline is not None
    assert deadline.isoformat() == "2030-01-31T18:00:00+00:00"


def test_a_spec_goes_through_json_unchanged() -> None:
    parsed = parse_job_spec(spec(slots={"allowed": [1, 2]}, deadline="2030-01-31T18:00:00+02:00", params={"a": [1]}))
    assert JobSpec.model_validate_json(parsed.model_dump_json()) == parsed


@pytest.mark.parametrize(("epochs", "dataset", "total"), [(1.1, 10, 11), (1.11, 10, 12), (3, 7, 21), (0.001, 10, 1)])
def test_epochs_are_rounded_up_to_whole_samples(epochs: float, dataset: int, total: int) -> None:
    assert total_samples(parse_job_spec(spec(work={"epochs": epochs})), dataset) == total


@given(st.integers(1, 10**9), st.integers(1, 10**6))
def test_samples_are_taken_as_they_are(samples: int, dataset: int) -> None:
    assert total_samples(parse_job_spec(spec(work={"samples": samples})), dataset) == samples


def test_every_leaf_of_the_schema_has_title_and_description() -> None:
    """The trigger form is made of it."""
    schema = JobSpec.model_json_schema()
    for model in (schema, *schema["$defs"].values()):
        for name, leaf in model["properties"].items():
            if "$ref" not in leaf:
                assert leaf.get("title"), name
                assert leaf.get("description"), name


def test_a_job_of_samples_reads_its_work_and_one_of_progress_as_much_as_its_cap_or_its_batches_can() -> None:
    batch = {"min": 16, "max": 256, "base": 32}
    progress = {"samples": 1000, "measure": "progress"}
    assert most_samples(parse_job_spec(spec(work={"samples": 1000}, batch=batch)), 1000) == 1000
    assert most_samples(parse_job_spec(spec(work=progress, batch=batch)), 1000) == 1000 * 8 + 256
    assert most_samples(parse_job_spec(spec(work={**progress, "max_samples": 77}, batch=batch)), 1000) == 77


def test_an_end_is_known_unless_the_job_says_how_it_is_found() -> None:
    for work, known in (({}, True), ({"measure": "progress"}, True), ({"target_loss": 1.0}, False),
                        ({"patience": 2}, False)):  # fmt: skip
        assert parse_job_spec(spec(work={"epochs": 1, **work})).work.end_is_known is known
