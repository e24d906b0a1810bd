"""Mutants of doors: who is let in, and to what. No simulated life has strangers: each names the test that catches it."""
# ruff: noqa: E501 - code is quoted as it stands

from __future__ import annotations

from benchmarks.mutants.mutant import RULE, Mutant, edited

AUDIT_TRAIL = "elastic_core/control/teams/audit_trail.py"
CHANNEL = "elastic_core/state/memory_tier/channel.py"
CROSS_SITE = "elastic_core/control/rpc/cross_site.py"
FOREIGN_FILES = "elastic_core/host/worker_user/foreign_files.py"
FRONT_DOOR = "elastic_core/track/mlflow_server/front_door.py"
LIFECYCLE = "elastic_core/control/transitions/lifecycle.py"
START_JOB = "elastic_core/control/transitions/start_job.py"
STORE_GRANTS = "elastic_core/state/store_access/store_grants.py"
STRANGERS = "elastic_core/train/parallel/strangers.py"
TOKENS = "elastic_core/protocol/tokens.py"

OF_BROKER = "tests/state/store_access/test_access_broker.py"
OF_CROSS_SITE = "tests/security/test_cross_site.py"


def _one(name: str, file: str, old: str, new: str, test: str) -> Mutant:
    return edited(name, RULE, file, old, new, test, simulated=False)


DOORS = (
    _one(
        "MLflow answers without a password", FRONT_DOOR,
        '        if not _knows(self._accounts(), headers.get(b"authorization", b"")):\n', "        if False:\n",
        "tests/security/test_mlflow_access.py::test_no_route_of_mlflow_answers_without_a_password",
    ),
    _one(
        "who does not know a group's token gets its keys", CHANNEL,
        '        if not hmac.compare_digest(proof, _mac(secret, b"client", own_nonce, peer_nonce, *bound)):\n', "        if False:\n",
        "tests/train/parallel/test_group_store.py::test_who_sends_anything_else_hears_a_nonce_and_no_more",
    ),
    _one(
        "a rank that does not know the token is taken for one", STRANGERS,
        "        if not hmac.compare_digest(proof.numpy().tobytes(), _proof(token, what, peer, rank)):\n", "        if False:\n",
        "tests/train/parallel/test_strangers.py::test_every_rank_names_the_one_that_does_not_know_it",
    ),
    _one(
        "a captured service request is answered again", TOKENS,
        "        if not self._is_new(headers[NONCE_HEADER], float(headers[TIME_HEADER]) + SKEW_SECONDS, now):\n", "        if False:\n",
        "tests/protocol/test_tokens.py",
    ),
    _one(
        "another site's page acts with a browser's login", CROSS_SITE,
        '    if origin is not None and origin not in (f"http://{host}", f"https://{host}"):', "    if False:",
        f"{OF_CROSS_SITE}::test_a_write_that_another_site_may_have_made_is_refused",
    ),
    _one(
        "a form of another site acts with a browser's login", CROSS_SITE, '    if kind != "application/json":\n', "    if False:\n",
        f"{OF_CROSS_SITE}::test_a_write_that_another_site_may_have_made_is_refused",
    ),
    _one(
        "what a grant lets read it lets write", STORE_GRANTS,
        "self.write if kind in _WRITING else", "(*self.write, *self.read) if kind in _WRITING else",
        f"{OF_BROKER}::test_what_it_starts_from_it_reads_and_does_not_change",
    ),
    _one(
        "a grant outlives its process group", STORE_GRANTS, "        if self.origin_epoch == 0:\n", "        if True:\n",
        f"{OF_BROKER}::test_a_grant_ends_with_its_process_group",
    ),
    _one(
        "the workers' user speaks for a run dir's owner", FOREIGN_FILES, "            if owners_only:\n", "            if False:\n",
        "tests/host/worker_user/test_foreign_files.py::test_in_a_mailbox_nobody_speaks_for_the_owner",
    ),
    _one(
        "a job starts from any team's checkpoint", LIFECYCLE, "    check_warm_start(tx, caller, warm_start)\n", "",
        "tests/control/teams/test_warm_starts.py::test_who_may_not_act_on_the_job_that_made_a_checkpoint_does_not_start_from_it",
    ),
    _one(
        "what changes nothing is on record", AUDIT_TRAIL, "        elif result is not False:\n", "        else:\n",
        "tests/control/teams/test_audit_trail.py::test_what_is_so_already_leaves_no_record_however_often_it_is_asked_for",
    ),
    _one(
        "another's refused run is started in its owner's name", START_JOB, "                _check_own(run, caller)\n                runs.try_again(job_id)\n", "                runs.try_again(job_id)\n",
        "tests/control/transitions/test_start_job.py::test_a_run_that_was_refused_is_tried_again_by_who_started_it_and_by_nobody_else",
    ),
)  # fmt: skip
