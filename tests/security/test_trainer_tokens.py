"""What tokens cannot do: expired, stale, of another segment or forged, they change nothing of a job, by any method."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import create_engine, select, text

from elastic_core.control.ledger.tables import Base
from elastic_core.control.plane import LedgerControl
from elastic_core.domain import SegmentState
from elastic_core.errors import Conflict, ElasticError, Fenced, UserError
from elastic_core.protocol import calls
from elastic_core.protocol.process_groups import ExitReport, LaunchOrder
from elastic_core.protocol.tokens import TOKEN_SECONDS, TrainerTokens
from tests.builders import FACTS, FakeClock, Life, a_beat, a_commit, a_control, a_spec, an_observation

METHODS: Mapping[str, Callable[[Any, LaunchOrder, int], object]] = {
    "heartbeat": lambda trainer, order, _: trainer.heartbeat(a_beat(99)),
    "observe": lambda trainer, order, _: trainer.observe([an_observation(99, order)]),
    "commit": lambda trainer, order, _: trainer.commit(a_commit(order, 99, finished=True)),
    "mark_bad": lambda trainer, order, checkpoint: trainer.mark_bad(checkpoint, "said so"),
    "release_slots": lambda trainer, order, _: trainer.release_slots(order.allocation.slots, order.epoch),
    "exited": lambda trainer, order, _: trainer.exited(ExitReport(kind="user_error", error="said so")),
}


@dataclass
class Scene:
    """job-a trains on two slots and has a checkpoint; job-b trains on the other two."""

    url: str
    control: LedgerControl
    clock: FakeClock
    life: Life
    order: LaunchOrder
    others: LaunchOrder
    checkpoint: int

    def rows(self) -> list[str]:
        """All that the ledger holds of job-a, but for when something of it was last looked at."""
        engine = create_engine(self.url)
        rows = []
        with engine.connect() as connection:
            for table in Base.metadata.sorted_tables:
                for row in connection.execute(select(table)).mappings():
                    values = dict(row)
                    if "job-a" in str(values) or values.get("epoch") == self.order.epoch:
                        rows.append(f"{table.name} {sorted(values.items(), key=str)}")
        engine.dispose()
        return sorted(rows)

    def decided(self) -> tuple[int, int]:
        """How many scheduling events there were, and decisions."""
        engine = create_engine(self.url)
        with engine.connect() as connection:
            version = connection.execute(text("SELECT version FROM scheduling")).scalar_one()
            decisions = connection.execute(text("SELECT count(*) FROM decisions")).scalar_one()
        engine.dispose()
        return version, decisions


@pytest.fixture
def scene(pool_url: str, tmp_path: Path) -> Iterator[Scene]:
    clock = FakeClock()
    control = a_control(pool_url, tmp_path, clock)
    lives = []
    for job_id in ("job-a", "job-b"):
        control.submit(job_id, a_spec(slots=(2, 2)), FACTS)
        lives.append(Life(control, control.trainer, job_id))
    order, others = (life.start() for life in lives)
    control.trainer(order.token).commit(a_commit(order, 4))
    (checkpoint,) = control.checkpoints("job-a")
    yield Scene(pool_url, control, clock, lives[0], order, others, checkpoint.checkpoint_id)
    control.close()


def expired(scene: Scene) -> str:
    scene.clock.now += TOKEN_SECONDS + 1
    return scene.order.token


def stale(scene: Scene) -> str:
    """Of an attempt whose processes are gone; the segment runs again."""
    old = scene.order.token
    scene.life.leave(scene.order, "infrastructure", "SIGKILL")
    scene.order = scene.life.start()
    return old


def of_another_segment(scene: Scene) -> str:
    return scene.others.token


def forged(scene: Scene) -> str:
    order, tokens = scene.order, TrainerTokens(b"somebody else's secret, long enough")
    return tokens.issue(
        job_id=order.job_id,
        segment_id=order.segment_id,
        epoch=order.epoch,
        origin_epoch=order.origin_epoch,
        now=scene.clock(),
        agent=True,
    )


def test_every_method_of_a_trainer_is_tried() -> None:
    assert calls.trainer_methods().keys() == METHODS.keys()


@pytest.mark.parametrize("token", [expired, stale, of_another_segment, forged])
@pytest.mark.parametrize("method", METHODS)
def test_a_token_that_is_not_the_one_in_force_changes_nothing(
    scene: Scene, method: str, token: Callable[[Scene], str]
) -> None:
    wrong = token(scene)
    before = scene.rows()
    with suppress(ElasticError):  # but a heartbeat is told in its answer, and of its own job another token may speak
        METHODS[method](scene.control.trainer(wrong), scene.order, scene.checkpoint)
    assert scene.rows() == before


@pytest.mark.parametrize("token", [expired, stale, of_another_segment, forged])
def test_a_boundary_that_its_token_cannot_commit_is_not_decided_on(scene: Scene, token: Callable[[Scene], str]) -> None:
    wrong = token(scene)
    before = scene.rows(), scene.decided()
    with pytest.raises(ElasticError):
        scene.control.trainer(wrong).commit(a_commit(scene.order, 99, final=True))
    assert (scene.rows(), scene.decided()) == before


@pytest.mark.parametrize(
    ("step", "more", "says"),
    [
        (9, {"uri": "job-a/elsewhere"}, "allowed is .*write the checkpoint there"),
        (9, {"uri": "job-b/lineage-0/step-0000000009-epoch-1-0"}, "outside the job's own prefix"),
        (3, {}, "regress: step 3 .*only goes back by a rollback"),
        (9, {"samples": 40}, "regress: step 9 .40 samples. after step 4 .40 samples."),
    ],
)
def test_a_boundary_that_cannot_be_committed_as_it_is_told_is_not_decided_on(
    scene: Scene, step: int, more: dict[str, Any], says: str
) -> None:
    before = scene.rows(), scene.decided()
    with pytest.raises(UserError, match=says):
        scene.control.trainer(scene.order.token).commit(a_commit(scene.order, step, final=True, **more))
    assert (scene.rows(), scene.decided()) == before
    scene.control.trainer(scene.order.token).commit(a_commit(scene.order, 9, final=True))
    assert scene.decided() > before[1]


def test_a_boundary_at_the_checkpoint_of_before_is_decided_on_if_it_is_the_last(scene: Scene) -> None:
    trainer, first = scene.control.trainer(scene.order.token), a_commit(scene.order, 5)
    trainer.commit(first)
    last = a_commit(scene.order, 6)
    trainer.commit(last)
    before = scene.rows(), scene.decided()
    with pytest.raises(Conflict, match="Each checkpoint has a folder of its own"):
        trainer.commit(replace(first, final=True))
    assert (scene.rows(), scene.decided()) == before
    assert trainer.commit(replace(last, final=True)).order is not None
    assert scene.decided() > before[1]


def test_a_token_of_an_earlier_attempt_is_not_answered_by_the_commit_that_ended_its_segment(scene: Scene) -> None:
    """Which hands on the lease: the answer holds the token of the next segment."""
    old = stale(scene)
    commit = a_commit(scene.order, 9, final=True)
    answer = scene.control.trainer(scene.order.token).commit(commit)
    assert answer.order is not None
    before = scene.rows()
    with pytest.raises(Fenced):
        scene.control.trainer(old).commit(commit)
    assert scene.rows() == before
    again = scene.control.trainer(scene.order.token).commit(commit).order
    assert again is not None
    assert again.epoch == answer.order.epoch


def test_a_trainer_cannot_say_that_its_own_processes_are_gone(scene: Scene) -> None:
    before = scene.rows()
    with pytest.raises(ElasticError, match="reported by the agent that watches them"):
        scene.control.trainer(scene.order.token).exited(ExitReport(kind="user_error", error="ValueError: mine"))
    with pytest.raises(ElasticError, match="reported by the agent that watches them"):
        scene.control.trainer(scene.order.token).release_slots(scene.order.allocation.slots, scene.order.epoch)
    assert scene.rows() == before
    scene.control.trainer(scene.order.agent_token).exited(ExitReport(kind="infrastructure", error="SIGKILL"))
    assert scene.control.segment(scene.order.segment_id).attempt == 1


def test_an_agent_that_was_cut_off_for_long_may_still_report(scene: Scene) -> None:
    scene.clock.now += 10 * TOKEN_SECONDS
    scene.control.trainer(scene.order.agent_token).exited(ExitReport(kind="infrastructure", error="SIGKILL"))
    assert scene.control.segment(scene.order.segment_id).state in (SegmentState.WAITING, SegmentState.GRANTED)


def test_an_agent_may_not_speak_for_its_workers(scene: Scene) -> None:
    before = scene.rows()
    for name, call in METHODS.items():
        if name not in ("exited", "release_slots"):
            with pytest.raises(ElasticError, match="token of an agent"):
                call(scene.control.trainer(scene.order.agent_token), scene.order, scene.checkpoint)
    assert scene.rows() == before
