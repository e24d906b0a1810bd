"""The alias that a registration moves, it moves for whoever submitted the job, by the rule of queues and on record."""

from __future__ import annotations

import pytest

from elastic_airflow.tasks.job_tasks import RegisterOperator
from elastic_core.control.plane import LedgerControl
from elastic_core.errors import Conflict, Forbidden
from elastic_core.protocol.callers import UNKNOWN_USER, Caller, Way
from elastic_core.protocol.http_client import HttpControl
from elastic_core.spec import QueueSpec
from tests.builders import FACTS, KeptChampions, a_cluster, a_spec

VISION = QueueSpec(name="vision", owners=("olga",), members=("ann", "ben", "dag:nightly"))
SPEECH = QueueSpec(name="speech", members=("sue", "root@host"))


@pytest.fixture
def champions(plane: LedgerControl) -> KeptChampions:
    """Version 1, the champion, is of ann's job in vision's queue."""
    plane.set_cluster(a_cluster().model_copy(update={"queues": (VISION, SPEECH)}))
    plane._champions = kept = KeptChampions(cats=("1", "2"))
    made(plane, "1", by="ann", queue="vision")
    return kept


def made(plane: LedgerControl, version: str, by: str | None, queue: str) -> str:
    job_id = f"cats-{version}"
    caller = None if by is None else Caller(name=by, way=Way.REST, unrestricted=by.endswith("@host"))
    plane.acting(caller).submit(job_id, a_spec("cats", queue=queue), FACTS)
    entry = {"uri": f"ckpt/{version}", "metrics": {}, "at": float(version)}
    return plane.record_results(job_id, {"registered_versions": {f"cats/{version}": entry}}).job_id


def take_over(control: HttpControl, job_id: str) -> None:
    RegisterOperator(task_id="register", job_id=job_id)._take_over(control, control.job(job_id), "cats", "2", "1")


@pytest.mark.parametrize(
    ("by", "queue"), [("ann", "vision"), ("ben", "vision"), ("dag:nightly", "vision"), ("root@host", "speech")]
)
def test_who_belongs_to_the_queue_of_the_champions_job_replaces_it_and_that_is_on_record(
    champions: KeptChampions, plane: LedgerControl, control: HttpControl, by: str, queue: str
) -> None:
    take_over(control, made(plane, "2", by, queue))
    assert champions.champions["cats"] == ["1", "2"]
    record = plane.audit_records(limit=1)[0]
    assert (record.actor, record.action, record.job_id, record.done) == (by, "promote", "cats-2", True)
    assert record.detail == "better than version 1, as registered"


def test_what_had_no_champion_to_beat_is_on_record_as_that(
    champions: KeptChampions, plane: LedgerControl, control: HttpControl
) -> None:
    champions.champions["cats"] = [""]
    job_id = made(plane, "2", "ann", "vision")
    RegisterOperator(task_id="register", job_id=job_id)._take_over(control, control.job(job_id), "cats", "2", "")
    assert plane.audit_records(limit=1)[0].detail == "without a champion to beat, as registered"


@pytest.mark.parametrize(("by", "who"), [("sue", "sue"), (None, UNKNOWN_USER)])
def test_nobody_else_does(
    champions: KeptChampions, plane: LedgerControl, control: HttpControl, by: str | None, who: str
) -> None:
    """Its name for the model is another team's, by accident or not."""
    with pytest.raises(Forbidden, match=f"'{who}' may not replace version 1 of model 'cats' of queue 'vision'"):
        take_over(control, made(plane, "2", by, "speech"))
    assert champions.champions["cats"] == ["1"]
    record = plane.audit_records(limit=1)[0]
    assert (record.actor, record.action, record.job_id, record.done) == (who, "replace", "cats-1", False)


def test_nor_by_hand_or_by_a_roll_back(champions: KeptChampions, plane: LedgerControl) -> None:
    made(plane, "2", by="sue", queue="speech")
    champions.champions["cats"] = ["2", "1"]
    sue = plane.acting(Caller(name="sue", way=Way.REST))
    for move in (lambda: sue.promote("cats", "2"), lambda: sue.roll_back_model("cats", "2")):
        with pytest.raises(Forbidden, match="'sue' may not replace version 1 of model 'cats' of queue 'vision'"):
            move()
        record = plane.audit_records(limit=1)[0]
        assert (record.actor, record.action, record.job_id, record.done) == ("sue", "replace", "cats-1", False)
    assert champions.champions["cats"] == ["2", "1"]


def test_nor_one_that_has_come_since_they_were_asked_for_the_right(
    champions: KeptChampions, plane: LedgerControl, monkeypatch: pytest.MonkeyPatch
) -> None:
    champions.versions["cats"] = ("1", "2", "3")
    for version in ("2", "3"):
        made(plane, version, by="sue", queue="speech")
    champions.champions["cats"] = ["2", "1"]
    monkeypatch.setattr(champions, "champion", lambda _: "2")  # as it was a moment ago
    sue = plane.acting(Caller(name="sue", way=Way.REST))
    for move in (lambda: sue.promote("cats", "3"), lambda: sue.roll_back_model("cats", "3")):
        with pytest.raises(Conflict, match="1 is the champion"):
            move()
    assert champions.champions["cats"] == ["2", "1"]


def test_a_champion_that_no_job_has_made_is_nobodys(
    champions: KeptChampions, plane: LedgerControl, control: HttpControl
) -> None:
    plane.record_results("cats-1", {"registered_versions": {}})
    take_over(control, made(plane, "2", "sue", "speech"))
    assert champions.champions["cats"] == ["1", "2"]
