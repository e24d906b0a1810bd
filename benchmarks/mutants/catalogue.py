"""The mutants: what is broken, where, of which invariant, and what has to notice.

Here are those of the nine invariants in docs/design/invariants.md, by their numbers; `asked_for` has those of what
people ask for, `doors` those of who is let in: no simulated life has either.
"""
# ruff: noqa: E501 - code is quoted as it stands

from __future__ import annotations

from benchmarks.mutants.asked_for import ASKED, FORKS, RULES, TIME
from benchmarks.mutants.doors import DOORS
from benchmarks.mutants.mutant import Mutant
from benchmarks.mutants.mutant import edited as _one

SQL = "elastic_core/control/ledger/migrations/versions/0001_ledger.sql"
RESTORE = "elastic_core/train/checkpoint/restore.py"
REGRESS = "elastic_core/control/ledger/migrations/versions/0023_progress_after_what_can_be_read.py"
FREE_SLOTS = "elastic_core/control/ledger/migrations/versions/0021_free_slots.py"
LEASES = "elastic_core/control/ledger/leases.py"
LINEAGE = "elastic_core/control/ledger/lineage.py"
ALLOCATOR = "elastic_core/control/scheduling/allocator.py"
ASKING = "elastic_core/control/scheduling/asking.py"
TURNS = "elastic_core/control/scheduling/turns.py"
DECISIONS = "elastic_core/control/scheduling/decision_records.py"
ENFORCE = "elastic_core/control/scheduling/enforce.py"
COMMITS = "elastic_core/control/transitions/commits.py"
ENDINGS = "elastic_core/control/transitions/endings.py"
LIFECYCLE = "elastic_core/control/transitions/lifecycle.py"
TABLES = "elastic_core/control/ledger/tables.py"
POOL = "elastic_core/control/transitions/pool_changes.py"
PROGRESS = "elastic_core/control/transitions/progress.py"
RECONCILE = "elastic_core/control/transitions/ledger_reconcile.py"
TOKENS = "elastic_core/protocol/tokens.py"
FOLLOW = "elastic_core/track/follow.py"

RAW_SQL = "tests/control/test_invariants.py"
BOUNDARIES = "tests/control/test_boundaries.py"
OF_RECONCILE = "tests/control/transitions/test_ledger_reconcile.py"
OF_ALLOCATOR = "tests/control/scheduling/test_allocator.py"
OF_DECISIONS = "tests/control/scheduling/test_decision_records.py"
OF_ENFORCE = "tests/control/scheduling/test_enforce.py"
OF_TOKENS = "tests/protocol/test_tokens.py"


_OF_INVARIANTS = (
    # 1. no double spend
    _one(
        "held slots are not unique in the database", 1, SQL,
        "CREATE UNIQUE INDEX uq_lease_slots_held", "CREATE INDEX uq_lease_slots_held",
        f"{RAW_SQL}::TestNoDoubleSpend", simulated=False,
    ),
    _one(
        "fencing frees the slots", 1, LEASES,
        "        lease.fence_reason = reason\n", "        lease.fence_reason = reason\n        release(tx, lease, reason)\n",
        f"{OF_RECONCILE}::test_expired_is_fenced_but_not_free",
    ),
    _one(
        "a held slot counts as free", 1, LEASES,
        "    WHERE NOT s.held AND n.present", "    WHERE n.present", "tests/control/test_life.py",
    ),
    _one(
        "a slot that is released goes on saying that it is held", 1, FREE_SLOTS, '("UPDATE", "NEW"), ', "",
        "tests/control/test_invariants.py",
    ),
    _one(
        "a resize in place frees at once what its processes have yet to leave", 1, COMMITS,
        "origin_epoch=lease.origin_epoch, beside=held)", "origin_epoch=lease.origin_epoch)",
        f"{BOUNDARIES}::test_slots_still_being_left_stay_held_over_the_next_boundary",
    ),
    _one(
        "slots given back may be those in use", 1, LEASES,
        "& held(tx, lease) - set(map(slot_id, allocation(lease).slots))", "& held(tx, lease)",
        "tests/control/test_contract.py",
    ),
    _one(
        "a list from before the fence tells that processes are gone", 1, RECONCILE,
        "as_of - lease.fenced_at < START_SECONDS", "as_of < 0",
        f"{OF_RECONCILE}::test_a_list_from_before_the_fence_does_not_tell_that_processes_are_gone",
    ),
    _one(
        "a live group is taken to be gone when its lease has ended", 1, RECONCILE,
        "    if group is not None and group.alive:\n        return None\n",
        "    if group is not None and group.alive and lease.fenced_at is None:\n        return None\n",
        f"{OF_RECONCILE}::test_expired_is_fenced_but_not_free",
    ),
    _one(
        "a trainer may say that its processes are gone", 1, TOKENS,
        "    if not claims.agent:\n        raise", "    if False:\n        raise",
        f"{OF_TOKENS}::test_an_agent_reports_the_end_and_does_nothing_else", simulated=False,
    ),
    # 2. single writer
    _one(
        "the database takes checkpoints of any epoch", 2, SQL,
        "    IF NOT FOUND THEN\n        RAISE EXCEPTION 'stale epoch", "    IF FALSE THEN\n        RAISE EXCEPTION 'stale epoch",
        f"{RAW_SQL}::TestSingleWriter", simulated=False,
    ),
    Mutant(
        "neither code nor database asks whether the epoch is in force", 2,
        (
            (SQL, "    IF NOT FOUND THEN\n        RAISE EXCEPTION 'stale epoch", "    IF FALSE THEN\n        RAISE EXCEPTION 'stale epoch"),
            (PROGRESS, "        _LEASES.c.released_at.is_(None),\n        _LEASES.c.fenced_at.is_(None),\n", ""),
        ),
        (f"{OF_RECONCILE}::test_expired_is_fenced_but_not_free",),
    ),
    _one(
        "a heartbeat renews a lease that was fenced", 2, PROGRESS,
        "    if lease.fenced_at is not None:\n", "    if False:\n",
        f"{OF_RECONCILE}::test_expired_is_fenced_but_not_free",
    ),
    _one(
        "rolling back leaves the old epoch in force", 2, LIFECYCLE,
        "        leases.fence(tx, lease, reason)\n", "        pass\n",
        "tests/control/test_contract.py",
    ),
    _one(
        "a job may have several open segments", 2, SQL,
        "CREATE UNIQUE INDEX uq_segments_open", "CREATE INDEX uq_segments_open",
        f"{RAW_SQL}::TestNoDoubleSpend::test_a_job_has_one_open_segment", simulated=False,
    ),
    _one(
        "a trainer's token never expires", 2, TOKENS,
        "    if now >= claims.expires_at:\n", "    if False:\n", "tests/security/test_trainer_tokens.py", simulated=False,
    ),
    # 3. monotone progress
    _one(
        "the database lets steps go back", 3, REGRESS,
        "    RAISE EXCEPTION 'regress: step", "    RETURN NEW; RAISE EXCEPTION 'regress: step",
        f"{RAW_SQL}::TestMonotoneProgress", simulated=False,
    ),
    _one(
        "rolling back opens no new lineage", 3, LIFECYCLE, "    job.lineage += 1\n", "",
        f"{RAW_SQL}::TestMonotoneProgress::test_a_new_lineage_starts_where_it_was_opened",
    ),
    _one(
        "a late heartbeat takes the steps back", 3, PROGRESS,
        "    where=HeartbeatRow.step <= _NEW_BEAT.excluded.step,\n", "",
        "tests/control/test_contract.py::test_a_heartbeat_that_comes_late_takes_no_step_back",
    ),
    # 4. all or nothing
    _one(
        "what is committed may be rewritten", 4, SQL,
        "IS DISTINCT FROM\n       (OLD", "IS NOT DISTINCT FROM\n       (OLD",
        f"{RAW_SQL}::TestMonotoneProgress::test_what_is_committed_is_not_rewritten", simulated=False,
    ),
    _one(
        "a corrupt checkpoint stays the head", 4, PROGRESS,
        "    job.head_id = good.id\n", "", "tests/control/test_contract.py",
    ),
    _one(
        "the last checkpoint is given up, and the job begins at step 0", 4, PROGRESS,
        "    if is_head and before is None:\n", "    if False:\n", "tests/control/test_contract.py",
    ),
    _one(
        "checkpoints are given up though none can be read", 4, RESTORE,
        "    if len(candidates) == 1:\n", "    if True:\n", "tests/train/checkpoint/test_restore.py", simulated=False,
    ),
    _one(
        "a checkpoint is committed under any name", 4, COMMITS,
        "    if commit.uri != own.uri:\n", "    if False:\n", "tests/control/test_contract.py", simulated=False,
    ),
    _one(
        "an interval checkpoint ends its segment", 4, COMMITS,
        "    if not commit.final:\n        return CommitAnswer(checkpoint_id=row.id, directive",
        "    if False:\n        return CommitAnswer(checkpoint_id=row.id, directive", "tests/control/test_life.py",
    ),
    # 5. exactly once
    _one(
        "a job is restored from the checkpoint before the last", 5, LINEAGE,
        "start is not None else good)", "start is not None else good[1:])",
        "tests/control/test_life.py",
    ),
    _one(
        "a checkpoint does not say what it goes on from", 5, COMMITS,
        "        previous_id=job.head_id,\n", "        previous_id=None,\n", RAW_SQL,
    ),
    _one(
        "a job that is revived forgets its head", 5, LIFECYCLE,
        "    job.state = JobState.ACTIVE\n    job.error", "    job.state, job.head_id = JobState.ACTIVE, None\n    job.error",
        "tests/control/test_contract.py",
    ),
    # 6. pure decisions
    _one(
        "a decision is recorded with another snapshot", 6, DECISIONS,
        "snapshot=to_json(snapshot),", 'snapshot=to_json(snapshot) | {"jobs": to_json(snapshot)["jobs"][:-1]},',
        f"{OF_ALLOCATOR}::test_every_decision_can_be_made_again_from_its_record",
    ),
    _one(
        "a plan made from an old snapshot comes into force", 6, DECISIONS,
        "Written.LATE if late else Written.DROPPED", "Written.LATE",
        f"{OF_ALLOCATOR}::test_a_plan_made_from_an_old_snapshot_is_dropped",
    ),
    _one(
        "a plan of which the ledger has a newer one comes into force", 6, DECISIONS,
        " or row.decided_version >= version:", ":",
        f"{OF_DECISIONS}::test_a_late_plan_of_which_there_is_a_newer_one_is_not_recorded",
    ),
    _one(
        "a plan that is dropped under the lock leaves its record", 6, DECISIONS,
        "    if written is Written.DROPPED or row", "    if written is Written.DROPPED:\n        return written\n    if row",
        f"{OF_DECISIONS}::test_what_comes_while_the_record_is_written_does_not_wait_for_it_and_takes_it_back",
    ),
    # 7. liveness
    _one(
        "who has yet to grow is taken to have what it shall", 7, ENFORCE,
        "for epoch, holder in holders.items() if is_settled(holder, targets.get(holder.job_id))}", "for epoch in holders}",
        f"{OF_ENFORCE}::test_who_waits_to_grow_is_looked_at_at_each_step_and_asked_once_there_is_room",
    ),
    _one(
        "a lease that was fenced is taken to have what it shall", 7, ENFORCE,
        "    LeaseRow.fenced_at.is_(None),\n", "",
        f"{OF_ENFORCE}::test_whatever_ends_it_or_changes_its_target_it_is_looked_at_again", simulated=False,
    ),
    _one(
        "an event that a crash left undecided stays so", 7, TABLES,
        "        return self.is_undecided or (self.wake_at is not None and self.wake_at <= now)\n",
        "        return self.wake_at is not None and self.wake_at <= now\n",
        f"{OF_ALLOCATOR}::test_an_event_left_undecided_by_a_crash_is_decided_with_the_next_heartbeat",
    ),
    _one(
        "an attempt that was lost does not ask again", 7, ENDINGS,
        "    segment.state = SegmentState.WAITING\n    segment.asked_at = tx.now\n    segment.end_reason", "    segment.end_reason",
        "tests/control/test_life.py",
    ),
    _one(
        "attempts are counted over commits", 7, COMMITS, "    segment.failures = 0\n", "",
        f"{BOUNDARIES}::test_crashes_are_counted_anew_after_a_commit", simulated=False,
    ),
    _one(
        "what carries a plan out does not let it go on", 7, ALLOCATOR,
        "            if tx.carries_out and tx.trigger is None:\n", "            if False:\n", "tests/control/test_life.py",
    ),
    # 8. safe degradation
    _one(
        "a policy that fails is not replaced", 8, TURNS,
        "            return last_plan or ask(registry.get(FALL_BACK), snapshot), failure\n", "            raise\n",
        f"{OF_ALLOCATOR}::test_a_policy_that_fails_is_replaced_by_a_fair_share_and_it_is_recorded",
    ),
    _one(
        "plans are not checked", 8, ASKING, "    if wrong:\n        raise InvalidPlan", "    if False:\n        raise InvalidPlan",
        OF_ALLOCATOR,
    ),
    _one(
        "an observation that comes twice is an error", 8, PROGRESS, "insert(ObservationRow).on_conflict_do_nothing()",
        "insert(ObservationRow)", "tests/control/test_contract.py",
    ),
    _one(
        "events are acknowledged before MLflow has taken them", 8, FOLLOW,
        '            self._record(events)\n            crash_here("page.recorded")\n            self.feed.acknowledge(self.reader, events[-1].position)\n',
        '            self.feed.acknowledge(self.reader, events[-1].position)\n            crash_here("page.recorded")\n            self._record(events)\n',
        "tests/track/test_follow.py",
    ),
    # 9. reconciliation
    _one(
        "groups that nobody owns are left alone", 9, RECONCILE, "            stop.append(group.origin_epoch)\n", "            pass\n",
        f"{OF_RECONCILE}::test_a_group_that_outlived_its_lease_is_nobodys",
    ),
    _one(
        "leases never expire", 9, ENDINGS, "    if tx.now - serving_since < tx.settings.lease_seconds:\n", "    if True:\n",
        f"{OF_RECONCILE}::test_expired_is_fenced_but_not_free",
    ),
    _one(
        "a dead group keeps its slots until somebody reports it", 9, RECONCILE,
        "        if tx.now - _last_sign_of_life(tx, lease) < REPORT_SECONDS:\n            return None\n", "        return None\n",
        f"{OF_RECONCILE}::test_a_dead_group_is_freed_once_its_agent_had_time_to_report", simulated=False,
    ),
    _one(
        "a node that leaves keeps its leases", 9, POOL, "        _end_leases_on_missing_slots(tx)\n", "        pass\n",
        "tests/control/test_contract.py",
    ),
    _one(
        "a commit whose answer was lost is refused", 9, COMMITS,
        "    if existing is not None and _was_committed_before(segment, existing, claims, commit):\n", "    if False:\n",
        "tests/control/test_contract.py",
    ),
)  # fmt: skip
MUTANTS = (*_OF_INVARIANTS, *FORKS, *ASKED, *RULES, *TIME, *DOORS)


def by_name(name: str) -> Mutant:
    found = [mutant for mutant in MUTANTS if mutant.name == name]
    if not found:
        raise SystemExit(f"there is no mutant {name!r}. There are: {'; '.join(mutant.name for mutant in MUTANTS)}")
    return found[0]
