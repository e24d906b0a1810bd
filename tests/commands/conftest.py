"""A control API that the commands of a test find by its settings."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from elastic_core.control.plane import LedgerControl
from tests.builders import CONTROL_SECRET, TRAINER_SECRET, FakeClock, FakeJobRuns, a_control
from tests.control.serving import app_before, served


@pytest.fixture
def runs() -> FakeJobRuns:
    return FakeJobRuns()


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def control(
    pool_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, clock: FakeClock, runs: FakeJobRuns
) -> Iterator[LedgerControl]:
    """A control API with the settings of this test's environment pointing at it."""
    plane = a_control(pool_url, tmp_path, clock, runs)
    secrets = tmp_path / "secrets"
    secrets.mkdir()
    for name, secret in (("control", CONTROL_SECRET), ("trainer", TRAINER_SECRET), ("ledger_url", pool_url.encode())):
        (secrets / name).write_bytes(secret)
    with app_before(plane) as app, served(app) as url:
        monkeypatch.setenv("ELASTIC_HOME", str(tmp_path))
        monkeypatch.setenv("ELASTIC_CONTROL_URL", f"{url}/elastic")
        monkeypatch.setenv("ELASTIC_POLICY", "fair_share")
        yield plane
    plane.close()
