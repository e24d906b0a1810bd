"""A spec says how gradients are exchanged; what cannot be is refused, saying what is possible."""

from __future__ import annotations

from typing import Any

import pytest

from elastic_core.comm.algorithms import NAMES
from elastic_core.domain import to_json
from elastic_core.errors import UserError
from elastic_core.spec import JobSpec, check_against, parse_cluster_spec, parse_job_spec
from elastic_core.spec.form import spec_from_form
from elastic_core.spec.parts.job_comm import CLASSES, HIERARCHICAL, MOMENTA, admitted

JOB = {"name": "j", "entry_point": "m:C", "work": {"epochs": 1}, "batch": {"min": 8, "max": 64}}


def a_spec(comm: Any, **more: Any) -> JobSpec:
    return parse_job_spec({**JOB, "slots": {"min": 1, "max": 4}, "comm": comm, **more})


def test_without_a_word_it_is_the_exact_sum() -> None:
    assert parse_job_spec(JOB).limits().comm == "allreduce"


def test_auto_admits_what_is_allowed_and_the_exact_sum_alone_without_a_word() -> None:
    assert a_spec({"algorithm": "auto", "allow": "lossy"}).limits().comm == "auto"
    assert a_spec({"algorithm": "auto"}).limits().comm == "allreduce"
    assert admitted(a_spec({"algorithm": "auto"}).comm.allow) == admitted("exact") == ("allreduce",)
    assert set(admitted("lossy")) == {name for name in CLASSES if CLASSES[name] in ("exact", "lossy")}
    assert set(admitted("averaging")) == set(CLASSES) - {"partial_backward"}
    assert set(admitted("partial")) == set(CLASSES)


def test_every_algorithm_that_a_spec_may_name_can_be_made_and_the_other_way_round() -> None:
    assert {a_spec({"algorithm": name, "allow": "partial"}).limits().comm for name in NAMES} == set(CLASSES)


@pytest.mark.parametrize(
    ("comm", "said"),
    [
        ({"algorithm": "bytgrad"}, "'allreduce', 'fp16', 'bf16', 'bytegrad', 'powersgd'"),
        ({"algorithm": "bytegrad", "allow": "exact"},
         "algorithm 'bytegrad' is lossy, and allow is 'exact'; possible are allow: lossy, or one of allreduce"),
        ({"allow": "all"}, "'exact', 'lossy', 'averaging' or 'partial'"),
        ({"algorithm": "partial_backward"}, "which a job has to allow; possible are allow: partial besides"),
        ({"algorithm": "partial_backward", "allow": "averaging"}, "algorithm 'partial_backward' is partial, and allow"),
        ({"algorithm": "local_sgd", "allow": "lossy"}, "possible are allow: averaging, or one of allreduce, fp16"),
        ({"algorithm": "bytegrad", "interval": 4}, "possible are interval left out, or one of local_sgd"),
        ({"algorithm": "auto", "allow": "averaging", "interval": 4}, "tries averages at an interval of 8; possible"),
        ({"algorithm": "local_sgd", "interval": 0}, "greater than or equal to 1"),
        ({"algorithm": "powersgd", "hierarchical": True}, "possible are hierarchical left out, or one of allreduce"),
        ({"algorithm": "auto", "hierarchical": True}, "algorithm 'auto' has no stage within nodes"),
        ({"algorithm": "bytegrad", "bits": 4}, "comm.bits: there is no such key"),
        ({"algorithm": "qadam", "warmup_steps": 0}, "comm.warmup_steps"),
        ({"stage_ratio": 1}, "comm.stage_ratio"),
        ({"stage_ratio": 8}, "and layouts admit none; possible are layouts.pipeline: [1, 2], or stage_ratio left out"),
        ({"stage_ratio": 8, "allow": "exact"}, "allow is 'exact'; possible are allow: lossy, or stage_ratio left out"),
        ({"algorithm": "qadam", "warmup_steps": 1_000_001}, "comm.warmup_steps"),
    ],
)  # fmt: skip
def test_what_does_not_exist_or_contradicts_itself_is_refused(comm: dict[str, Any], said: str) -> None:
    with pytest.raises(UserError) as refused:
        a_spec(comm)
    assert said in str(refused.value)


@pytest.mark.parametrize("allow", ["lossy", "averaging", None])
def test_what_is_allowed_may_be_more_than_what_is_used(allow: str | None) -> None:
    assert a_spec({"algorithm": "powersgd", "allow": allow}).comm.algorithm == "powersgd"


def test_models_that_may_be_cut_use_the_exact_sum() -> None:
    with pytest.raises(UserError, match="is for replicas of the whole model, and layouts may cut it; possible are"):
        a_spec({"algorithm": "bytegrad"}, layouts={"tensor": [1, 2]})


@pytest.mark.parametrize(
    ("algorithm", "allow", "does"),
    [
        ("partial_backward", "partial", "'partial_backward' exchanges gradients of parts of it"),
        ("local_sgd", "averaging", "'local_sgd' exchanges weights"),
        ("auto", "averaging", "'auto' may exchange weights"),
        ("auto", "partial", "'auto' may exchange weights or gradients of parts of it"),
    ],
)
def test_without_a_gradient_of_the_whole_batch_nothing_is_decided_by_its_noise(
    algorithm: str, allow: str, does: str
) -> None:
    comm, batch = {"algorithm": algorithm, "allow": allow}, {"min": 8, "max": 64, "base": 8}
    with pytest.raises(UserError, match=rf"'adascale', which needs .* {does}; possible"):
        a_spec(comm, batch={**batch, "learning_rate_rule": "adascale"})
    with pytest.raises(UserError, match=rf"'progress', which needs .* {does}; .*: samples"):
        a_spec(comm, batch=batch, work={"epochs": 1, "measure": "progress"})
    assert a_spec({**comm, "allow": "lossy"} if algorithm == "auto" else comm, batch=batch)


@pytest.mark.parametrize("algorithm", sorted(MOMENTA))
def test_where_momenta_are_exchanged_nothing_is_decided_by_the_noise_of_gradients(algorithm: str) -> None:
    batch = {"min": 8, "max": 64, "base": 8}
    with pytest.raises(UserError, match=r"'adascale', which needs the gradient of .* exchanges momenta; possible"):
        a_spec({"algorithm": algorithm}, batch={**batch, "learning_rate_rule": "adascale"})
    with pytest.raises(UserError, match=r"'progress', which needs the gradient of .* exchanges momenta; .* measure: s"):
        a_spec({"algorithm": algorithm}, batch=batch, work={"epochs": 1, "measure": "progress"})
    assert a_spec({"algorithm": algorithm, "warmup_steps": 9}, batch={**batch, "learning_rate_rule": "linear"})


def test_exchanges_are_for_any_slots_and_compressed_stages_for_those_of_cpus() -> None:
    cluster = parse_cluster_spec({"nodes": [{"name": "a", "type": "h200", "slots": 8}, {"name": "b", "type": "cpu",
                                                                                         "slots": 2}]})  # fmt: skip
    check_against(a_spec({"algorithm": "bytegrad"}), cluster)
    check_against(a_spec({}), cluster)
    with pytest.raises(UserError, match=r"comm.stage_ratio: stages shrink what they send on slots of type 'cpu' only"):
        check_against(a_spec({"stage_ratio": 8}, layouts={"pipeline": [1, 2]}), cluster)
    check_against(a_spec({"algorithm": "auto", "allow": "lossy"}), cluster)


def test_the_trigger_form_has_a_field_for_it() -> None:
    filled = {"name": "j", "entry_point": "m:C", "work_epochs": 1, "batch_min": 8, "batch_max": 64}
    assert spec_from_form({**filled, "comm_algorithm": "fp16"}, {}).comm.algorithm == "fp16"


def test_averages_are_eight_steps_apart_unless_the_spec_says_otherwise() -> None:
    assert a_spec({"algorithm": "local_sgd"}).comm.steps_between_averages == 8
    assert a_spec({"algorithm": "local_sgd", "interval": 500}).comm.steps_between_averages == 500


@pytest.mark.parametrize(
    ("needs", "said"),
    [
        (
            {"batch": {"min": 8, "max": 64, "learning_rate_rule": "adascale"}},
            "possible are linear, sqrt or none, or an",
        ),
        (
            {"work": {"epochs": 1, "measure": "progress"}},
            "possible are measure: samples, or an algorithm that exchanges",
        ),
    ],
)
def test_what_needs_the_whole_batch_s_gradient_is_refused_where_weights_are_averaged(
    needs: dict[str, Any], said: str
) -> None:
    with pytest.raises(UserError) as refused:
        a_spec({"algorithm": "local_sgd"}, **needs)
    assert said in str(refused.value)
    a_spec({"algorithm": "bytegrad"}, **needs)


def test_stages_within_nodes_are_for_replicas_and_for_algorithms_that_exist() -> None:
    assert set(HIERARCHICAL) < set(CLASSES)
    with pytest.raises(UserError, match="possible are layouts left out, or hierarchical left out"):
        a_spec({"hierarchical": True}, layouts={"tensor": [1, 2]})


def test_limits_tell_what_else_the_time_of_a_step_hangs_on() -> None:
    for options, comm in {
        "": {"algorithm": "local_sgd", "interval": 8},
        "interval=16": {"algorithm": "diloco", "interval": 16},
        "interval=16 hierarchical": {"algorithm": "local_sgd", "interval": 16, "hierarchical": True},
        "hierarchical": {"hierarchical": True},
    }.items():
        limits = parse_job_spec({**JOB, "comm": comm}).limits()
        assert limits.comm_options == options
        assert ("comm_options" in to_json(limits)) == bool(options)


def test_limits_tell_what_a_choice_may_be() -> None:
    for comm, allow in {
        ("auto", "lossy"): "lossy", ("auto", "averaging"): "averaging", ("auto", "exact"): "", ("auto", None): "",
        ("bytegrad", "lossy"): "",
    }.items():  # fmt: skip
        limits = parse_job_spec({**JOB, "comm": dict(zip(("algorithm", "allow"), comm, strict=True))}).limits()
        assert limits.comm_allow == allow


def test_the_guard_is_on_unless_it_is_switched_off() -> None:
    assert a_spec({"algorithm": "bytegrad"}).comm.guard
    assert not a_spec({"algorithm": "bytegrad", "guard": False}).comm.guard
