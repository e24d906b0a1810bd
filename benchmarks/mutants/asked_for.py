"""Mutants of what people ask for and may have: forks, sweeps, champions, questions, teams; of the clock, and of what is
removed when it is old. No simulated life has any of it: each names the test that catches it."""
# ruff: noqa: E501 - code is quoted as it stands

from __future__ import annotations

from benchmarks.mutants.mutant import RULE, Mutant, edited

LIFECYCLE = "elastic_core/control/transitions/lifecycle.py"
REMOVABLE = "elastic_core/control/transitions/removable.py"
RETENTION = "elastic_core/control/transitions/retention.py"
PLANE = "elastic_core/control/plane.py"
JOB_ACTIONS = "elastic_core/control/job_actions.py"
SWEEP_STARTS = "elastic_core/control/sweep_starts.py"
SWEEPS = "elastic_core/spec/inputs/sweeps.py"
BOUNDS = "elastic_core/spec/bounds.py"
JOB_FORKS = "elastic_core/spec/job_forks.py"
AUDIT_TRAIL = "elastic_core/control/teams/audit_trail.py"
PERMISSIONS = "elastic_core/control/teams/permissions.py"
QUOTAS = "elastic_core/control/teams/job_quotas.py"
WHAT_IF = "elastic_core/control/rpc/whatif.py"
CLOCK = "elastic_core/host/steady_clock.py"
HANG_WATCH = "elastic_core/train/process/hang_watch.py"
FOLDERS = "elastic_core/launch/folders.py"

OF_FORKS = "tests/control/transitions/test_fork_job.py"
OF_STARTS = "tests/control/transitions/test_start_job.py"
OF_RETENTION = "tests/control/transitions/test_retention.py"
OF_QUOTAS = "tests/control/teams/test_job_quotas.py"
OF_PERMISSIONS = "tests/control/teams/test_permissions.py"
OF_RECORDS = "tests/control/teams/test_audit_trail.py"
OF_SWEEPS = "tests/spec/inputs/test_sweeps.py"
OF_TEAMS = "tests/security/test_teams.py"
OF_OWNERSHIP = "tests/airflow/tasks/test_register_ownership.py"
OF_PROMOTION = "tests/airflow/retraining/test_promotion.py"
OF_QUESTIONS = "tests/control/rpc/test_bounded_questions.py"
OF_FOLDERS = "tests/launch/test_folders.py"


def _one(name: str, invariant: int, file: str, old: str, new: str, test: str) -> Mutant:
    return edited(name, invariant, file, old, new, test, simulated=False)


FORKS = (
    _one(
        "a fork begins at step 0", 5, LIFECYCLE, "FORK: to_json(origin)}, head_id=point.id)", "FORK: to_json(origin)})",
        f"{OF_FORKS}::test_its_first_segment_restores_the_parents_checkpoint_by_hash",
    ),
    _one(
        "what an active fork starts from may be deleted", 4, REMOVABLE, "select(JobRow.warm_start, _FORKED_FROM)", "select(JobRow.warm_start)",
        f"{OF_FORKS}::test_what_a_fork_starts_from_is_kept_while_it_is_active",
    ),
    _one(
        "a checkpoint that is being deleted is forked", 4, LIFECYCLE, "    if is_given_up(tx, point):\n", "    if False:\n",
        f"{OF_FORKS}::test_what_a_fork_starts_from_is_kept_while_it_is_active",
    ),
    _one(
        "a fork may be another task than its parent", 5, JOB_FORKS, '    if wrong:\n        raise UserError(\n            f"a fork', '    if False:\n        raise UserError(\n            f"a fork',
        "tests/spec/test_job_forks.py::test_all_else_is_refused_in_words",
    ),
    _one(
        "who may not submit submits by a fork", RULE, PLANE, "            audit_trail.act_too(tx, caller, Action.SUBMIT, audit_trail.of_spec(tx, job_id, spec))\n", "",
        f"{OF_FORKS}::test_who_forks_must_be_let_act_on_the_parent_and_submit_the_fork",
    ),
)  # fmt: skip

ASKED = (
    _one(
        "members of a sweep start before all are seen to be right", 4, PLANE,
        "sweep_starts.check_all(self._ledger, self._job_runs(), members, warm_start, self._caller)", "frozenset()",
        f"{OF_STARTS}::test_a_member_that_was_something_else_before_keeps_all_others_from_starting",
    ),
    _one(
        "a sweep takes more places than its queue has", RULE, SWEEP_STARTS,
        "    ledger.read(lambda tx: _check_rooms(tx, members, name_of(caller)))\n", "",
        f"{OF_QUOTAS}::test_a_sweep_needs_a_place_for_each_of_its_members",
    ),
    _one(
        "a sweep of any depth is looked into", 8, SWEEPS,
        '    _check_bounds({"spec": sweep.spec, "grid": sweep.grid, "members": sweep.members})\n', "",
        f"{OF_SWEEPS}::test_what_no_ledger_stores_is_refused_however_it_came",
    ),
    _one(
        "a sweep may be tens of megabytes of specs", 8, SWEEPS, "    if size * count > MOST_SWEPT_BYTES:\n", "    if False:\n",
        f"{OF_SWEEPS}::test_members_have_so_many_bytes_of_specs_in_all",
    ),
    _one(
        "what is too large is looked through", 8, BOUNDS, "_problem_of_size(data, most_bytes) or problem_of_texts(data)",
        "problem_of_texts(data) or _problem_of_size(data, most_bytes)",
        "tests/spec/test_bounds.py::test_what_is_too_large_is_not_looked_through",
    ),
    _one(
        "two questions are answered at once", 8, WHAT_IF, "    if not _answering.acquire(blocking=False):\n", "    if not _answering.acquire(blocking=True):\n",
        f"{OF_QUESTIONS}::test_while_one_simulates_the_next_is_told_to_come_again",
    ),
    _one(
        "the process of a question outlives its answer", 8, WHAT_IF, "        child.stop()\n", "        pass\n",
        f"{OF_QUESTIONS}::test_the_process_of_a_question_is_gone_with_the_answer",
    ),
)  # fmt: skip

RULES = (
    _one(
        "a champion is moved by whoever may ask", RULE, AUDIT_TRAIL,
        "        check(caller, action, seen[0])\n        yield outcome\n", "        yield outcome\n",
        f"{OF_PROMOTION}::test_who_may_not_act_on_the_job_moves_no_champion_by_approving",
    ),
    _one(
        "a champion is moved and nobody is on record with it", RULE, AUDIT_TRAIL, "    if detail is not None:\n", "    if False:\n",
        f"{OF_PROMOTION}::test_who_approved_is_on_record_with_the_promotion",
    ),
    _one(
        "a champion of before comes back without a question", RULE, JOB_ACTIONS,
        "        return self._move_champion(\n"
        '            model, to, "rolled back to", lambda one, replaced: one.roll_back(model, to, replaced)\n'
        "        )\n",
        "        assert self._champions is not None\n        return self._champions.roll_back(model, to)\n",
        f"{OF_TEAMS}::test_each_route_lets_in_whom_the_rule_lets_and_nobody_else",
    ),
    _one(
        "a champion is another team's, and is replaced by hand", RULE, JOB_ACTIONS,
        "        replaced = (self._champions.champion(model) or \"\") if instead_of is None else instead_of\n",
        "        replaced = instead_of\n", f"{OF_OWNERSHIP}::test_nor_by_hand_or_by_a_roll_back",
    ),
    _one(
        "a queue takes any number of jobs", RULE, LIFECYCLE, "    check_room(tx, spec.queue, name_of(caller))\n    return False\n", "    return False\n",
        f"{OF_QUOTAS}::test_a_full_queue_takes_no_more_and_says_how_many_it_may_have",
    ),
    _one(
        "a user has all of a queue's places", RULE, QUOTAS, "    if most is not None and user is not None and ", "    if most is not None and user is None and ",
        f"{OF_QUOTAS}::test_a_user_has_a_quota_of_their_own",
    ),
    _one(
        "a member acts on other members' jobs", RULE, PERMISSIONS,
        "    if is_open or (about.submitted_by is not None and about.submitted_by == caller.name):\n", "    if is_open or about.submitted_by is not None:\n",
        f"{OF_PERMISSIONS}::test_what_each_role_may_do_in_a_teams_queue",
    ),
    _one(
        "any priority is anybody's", RULE, PERMISSIONS, "    if queue.max_priority is None or priority <= queue.max_priority:\n", "    if True:\n",
        f"{OF_PERMISSIONS}::test_priority_is_bounded_for_all_but_owners",
    ),
    _one(
        "a refusal is on no record", RULE, AUDIT_TRAIL,
        "    ledger.write(lambda tx: _record(tx, caller, action, about, str(refusal), done=False))\n", "    pass\n",
        f"{OF_RECORDS}::test_what_fails_is_on_record_as_refused_and_changes_nothing",
    ),
)  # fmt: skip

TIME = (
    _one(
        "leases go by the host's clock", 9, CLOCK, "        self._steady = steady\n", "        self._steady = steady = wall\n",
        "tests/host/test_steady_clock.py::test_a_lease_that_is_renewed_outlives_a_jump_of_the_clock",
    ),
    _one(
        "a process that was stopped has been hanging", 7, HANG_WATCH, "min(now - looked, 2 * self._interval)", "now - looked",
        "tests/train/process/test_hang_watch.py::test_time_in_which_the_process_was_stopped_is_not_counted",
    ),
    _one(
        "the grace of a stop goes by the host's clock", 9, FOLDERS, "SteadyClock(self.home)()", "__import__('time').time()",
        f"{OF_FOLDERS}::test_a_stop_that_is_repeated_after_the_clock_was_set_keeps_to_its_grace",
    ),
    _one(
        "a stop that is repeated begins its grace anew", 9, FOLDERS, "now if request.before_agent else min(kill_at, request.kill_at)", "now if request.before_agent else kill_at",
        f"{OF_FOLDERS}::test_a_stop_that_is_repeated_after_the_clock_was_set_keeps_to_its_grace",
    ),
    _one(
        "a decision that a target names is removed", 6, RETENTION, "AND id NOT IN (SELECT decision_id FROM targets)", "",
        f"{OF_RETENTION}::test_a_decision_that_a_target_names_stays_and_explains_it",
    ),
    _one(
        "the plan that a decision kept is removed", 6, RETENTION, "    if tx.session.get_one(DecisionRow, first).policy != KEPT:\n", "    if True:\n",
        f"{OF_RETENTION}::test_the_decision_before_one_that_kept_its_plan_stays_with_it",
    ),
    _one(
        "events go before every reader has seen them", 8, RETENTION, "e.position <= :seen AND", "(e.position <= :seen OR TRUE) AND",
        f"{OF_RETENTION}::test_events_go_when_they_are_old_and_every_reader_has_seen_them",
    ),
    _one(
        "events of a segment that runs are removed", 8, RETENTION, "s.state IN ('created', 'waiting', 'granted', 'running')", "s.state IN ('created', 'waiting')",
        f"{OF_RETENTION}::test_events_of_a_segment_that_runs_are_kept",
    ),
    _one(
        "of a job that runs the newest reports are thinned", 8, RETENTION, "WHERE job_id = :job AND id <= :until", "WHERE job_id = :job",
        f"{OF_RETENTION}::test_of_a_job_that_runs_the_newest_reports_stay_and_those_before_are_spread_over_its_work",
    ),
    _one(
        "refusals push deeds off the record", RULE, RETENTION, "id < :first_done AND done OR id < :first_refused AND NOT done", "id < :first_done OR id < :first_refused",
        f"{OF_RETENTION}::test_refusals_without_end_push_no_action_off_the_record",
    ),
)  # fmt: skip
