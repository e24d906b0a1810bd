"""The transaction around a decision. There is no scheduler daemon: whoever causes a scheduling event decides.

Whoever has the turn (`turns`) makes decisions until a plan is in force: one is in flight at a time, over all processes.
Events that come meanwhile raise the version, and whoever decides goes on until nothing is left undecided. But for
few jobs turns are taken in a process of their own (`decision_process`).

Where events come faster than plans are made, no plan would ever be of the moment. So after two that were dropped the
next comes into force late: what it grants and revokes goes by the slots and leases of now, and what it has not seen is
decided right after it. Whoever asked has a plan then, and does not wait for those that follow: they are made aside,
with pauses as long as they take themselves. Where jobs are not few, nobody waits for more than one; where they are
many, none is dropped.

Decisions that take long, as with a thousand jobs, keep a distance (`deciders.Pace`): what comes in it is decided aside,
after it. Only who asks for a decision (`decide`) gets it at once. What a person asks for, of a job, a node or the
policy, is decided on aside, too: where many jobs train, events never end, and whoever decides may be at it for long.

What only carries a plan out is no such event: a segment that the plan ended is committed, its processes are gone, its
successor asks. The plan goes on then (`enforce.carry_on`), so that it is made once, not anew at each of its own steps.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

from elastic_core.control.ledger.database import Ledger, Tx
from elastic_core.control.scheduling import chosen_policy, enforce, snapshots
from elastic_core.control.scheduling.asking import ask_within_quotas, carried_over
from elastic_core.control.scheduling.deciders import Aside, Decider, DecidesHere, Pace, at_once
from elastic_core.control.scheduling.decision_process import DecisionProcess
from elastic_core.control.scheduling.decision_records import Recorded, Written
from elastic_core.control.scheduling.policy_process import NoAnswer
from elastic_core.control.scheduling.predicting.predictors import Predictors
from elastic_core.control.scheduling.turns import Turn, TurnsHere
from elastic_core.crashing import crash_here
from elastic_core.domain import Plan, Snapshot, from_json, to_json
from elastic_core.logs import get_logger
from elastic_core.policy import registry
from elastic_core.policy.rules.placed_alone import places
from elastic_core.protocol.encoding import dumps, loads
from elastic_core.protocol.forecasts import Outlook
from elastic_core.protocol.records import JobFacts
from elastic_core.settings import Settings
from elastic_core.spec import JobSpec

T = TypeVar("T")

MAX_ROUNDS = 50  # decisions in one go; what is left then, the next event or reconcile takes up
ANSWERED_AFTER = 1.0
log = get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Replay:
    """A recorded decision and what its policy says today to the same inputs."""

    decision_id: int
    trigger: str
    snapshot: Snapshot
    recorded: Plan
    again: Plan

    @property
    def same(self) -> bool:
        return self.recorded == self.again


class Allocator:
    """Makes decisions for one ledger. Any number of processes may have one."""

    def __init__(
        self,
        ledger: Ledger,
        settings: Settings,
        fit: snapshots.Fit | None = None,
        decider: Decider | None = None,
        aside: Aside = at_once,
        process: DecisionProcess | None = None,
    ) -> None:
        """`process` takes the turns but where jobs are few."""
        self._ledger, self._aside, self._process = ledger, aside, process
        self._decider = decider or DecidesHere()
        self.predictors = Predictors(ledger, settings)
        self._settled = enforce.Settled()
        self._here = TurnsHere(ledger, self._decider, self.predictors, self._settled, fit)
        self._pace = Pace()

    def snapshot(self) -> Snapshot:
        return self._here.snapshot()

    def outlook(self, spec: JobSpec, facts: JobFacts) -> Outlook:
        """Of a job that is not submitted, as the policy in force would decide on it now."""
        policy, snapshot = self._here.asked_with()
        return self.predictors.outlook(spec, facts, snapshot, registry.get(policy))

    def renew_predictors(self) -> None:
        """Now and then: what decisions are told of jobs that report as they go, and what of earlier jobs."""
        self.predictors.refresh()
        if self._process is None or not self._process.renew():
            self.predictors.renew()

    def change(self, work: Callable[[Tx], T]) -> T:
        """`Ledger.change`; what is no news to the plan in force, but a step of it, lets it go on in the same change. So
        does a lost attempt: its job has slots again before anybody is asked, or else it is news."""

        def change_and_go_on(tx: Tx) -> T:
            result = work(tx)
            if tx.returning:
                enforce.give_back(tx)
            if tx.carries_out and tx.trigger is None:
                enforce.carry_on(tx, self._settled)
            return result

        return self._ledger.change(change_and_go_on)

    def decide(self, trigger: str) -> None:
        """Now, for this reason."""
        self._ledger.change(partial(_set_trigger, trigger=trigger))
        self._decide_what_is_left()

    def tell(self, trigger: str) -> None:
        """Of an event, on which to decide as on any other."""
        self._ledger.change(partial(_set_trigger, trigger=trigger))
        self.decide_pending()

    def decide_pending(self) -> None:
        """Decide until no scheduling event is left undecided, or a late plan is in force, or leave it to the process
        that is at it, or to a decision aside, after a pause."""
        if self.pauses:
            self._aside(self._catch_up)
        else:
            self._decide_what_is_left()

    def decide_soon(self) -> None:
        """Aside. What a person asked for is answered once it is decided on, or after `ANSWERED_AFTER` seconds; at once
        where jobs are no few: then something is undecided at any time."""
        self._aside(self.decide_pending)
        deadline = time.monotonic() + (ANSWERED_AFTER if self._pace.few else 0.0)
        while self._aside is not at_once and time.monotonic() < deadline and self._ledger.read(_is_undecided):
            time.sleep(0.02)

    @property
    def pauses(self) -> bool:
        """Decisions keep a distance now, where there is an aside to make them later."""
        return self._aside is not at_once and self._pace.holds

    def _decide_what_is_left(self) -> None:
        crash_here("change.undecided")
        rounds = 0
        while rounds < MAX_ROUNDS and self._ledger.read(_is_undecided):
            turn = self._take_turn(MAX_ROUNDS - rounds)
            if turn.written is None:
                return  # whoever is at it looks for what came meanwhile, once more after it has let go
            if turn.written is Written.LATE or not self._pace.few:
                self._aside(self._catch_up)
                return
            rounds += turn.made

    def _catch_up(self) -> None:
        """Aside, until no event is left undecided."""
        for _ in range(MAX_ROUNDS):
            time.sleep(self._pace.left)
            if not self._ledger.read(_is_undecided) or self._take_turn(MAX_ROUNDS).written is None:
                return

    def _take_turn(self, most: int) -> Turn:
        turn = self._turn_in_process(most) or self._here.take(most)
        if turn.written is not None:
            self._pace.note(time.monotonic() - turn.seconds, turn.jobs)
        return turn

    def _turn_in_process(self, most: int) -> Turn | None:
        """None where turns are taken here: jobs are few, or the process is not there yet or any more."""
        if self._process is None or self._pace.few or not self._process.is_ready():
            return None
        try:
            return self._process.take(most)
        except NoAnswer:
            log.exception("the process of decisions is lost; this one decides until there is another")
            return None

    def wake(self) -> None:
        """Decide if the plan's own next time has come, if a crash left an event undecided, or if another policy is
        configured than decided last. Not in a pause."""
        if not self.pauses and self._ledger.read(is_due):
            self._ledger.change(_take_wake_up)
            self.decide_pending()

    def keep_up(self) -> None:
        """Renew what decisions are told, and wake. Never in the way of who has to make the ledger agree again."""
        try:
            self.renew_predictors()
            self.wake()
        except Exception:
            log.exception("a decision failed; the next event or reconciliation makes it up")

    def close(self) -> None:
        if self._process is not None:
            self._process.close()
        self._decider.close()


def _set_trigger(tx: Tx, trigger: str) -> None:
    tx.trigger = trigger


def _is_undecided(tx: Tx) -> bool:
    return tx.scheduling().is_undecided


def is_due(tx: Tx) -> bool:
    return tx.scheduling().is_due(tx.now) or chosen_policy.replaced(tx) is not None


def _take_wake_up(tx: Tx) -> None:
    """Only one of many callers that see the time come makes an event of it."""
    row = tx.scheduling()
    if row.wake_at is not None and row.wake_at <= tx.now:
        row.wake_at = None
        tx.trigger = "the plan's own wake-up"
    chosen_policy.notice(tx)


def replay(found: Recorded, decider: Decider) -> Replay:
    """Make a recorded decision again from its inputs, in no transaction: a policy takes its time."""
    if found.kept is not None:
        again = carried_over(found.kept, found.snapshot, found.plan.notes[0])
    else:
        placing = places(registry.get(found.policy))
        again = ask_within_quotas(lambda within: decider.decide(found.policy, within), found.snapshot, placing)
    again = from_json(Plan, loads(dumps(to_json(again))))
    return Replay(found.decision_id, found.trigger, found.snapshot, found.plan, again)
