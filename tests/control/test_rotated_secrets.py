"""A secret is rotated under a running job: the job goes on, with the same processes, to its end."""

from __future__ import annotations

from pathlib import Path

import pytest

from elastic_core.control.ledger.database import Ledger
from elastic_core.control.plane import LedgerControl
from elastic_core.domain import JobState
from elastic_core.errors import Unauthorized
from elastic_core.protocol.process_groups import ExitKind, ExitReport
from elastic_core.protocol.tokens import TOKEN_SECONDS, KeyFile
from elastic_core.services.secrets import rotate
from tests.builders import FACTS, TRAINER_SECRET, FakeClock, Life, a_beat, a_cluster, a_commit, a_spec, settings

DAY = 86_400.0


@pytest.mark.nightly
def test_a_running_job_outlives_the_secret_that_its_first_token_was_signed_with(
    ledger_url: str, tmp_path: Path, clock: FakeClock
) -> None:
    home = settings(tmp_path)
    home.secret_file("").mkdir()
    home.secret_file("trainer").write_bytes(TRAINER_SECRET)
    control = LedgerControl(Ledger(ledger_url, home, clock), home, KeyFile(home.secret_file("trainer"), clock))
    control.set_cluster(a_cluster())
    control.submit("job-a", a_spec(), FACTS)
    life = Life(control, control.trainer, "job-a")
    order = life.start()
    token = order.token
    rotate(home, ["trainer"], clock(), DAY)
    step = 0
    while clock.now < 1_000_000.0 + DAY + TOKEN_SECONDS:
        clock.advance(60)
        step += 1
        token = control.trainer(token).heartbeat(a_beat(step)).token or token
    with pytest.raises(Unauthorized):
        control.trainer(order.token)  # the first one is of the secret before, which counts no more
    control.trainer(token).commit(a_commit(order, step, finished=True))
    assert control.job("job-a").state is JobState.FINISHED
    assert control.segment(order.segment_id).attempt == 0
    with pytest.raises(Unauthorized):
        life.leave(order, ExitKind.FINISHED)  # the agent's as well: reconciliation frees the slots then
    control.process_group_gone(order.origin_epoch, ExitReport(kind=ExitKind.FINISHED))
    assert not control.segment(order.segment_id).lease_live
    control.close()
