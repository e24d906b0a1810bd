"""Secrets that are replaced while they are in use: what the one before signed is good until it counts no more."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from elastic_core.errors import Unauthorized, UserError
from elastic_core.protocol.tokens import KeyFile, ServiceSigner, TrainerTokens
from elastic_core.services.secrets import rotate
from elastic_core.settings import Settings
from tests.builders import CONTROL_SECRET, TRAINER_SECRET, FakeClock, settings

HOUR = 3600.0


@pytest.fixture
def home(tmp_path: Path) -> Settings:
    made = settings(tmp_path)
    made.secret_file("").mkdir()
    made.secret_file("control").write_bytes(CONTROL_SECRET)
    made.secret_file("trainer").write_bytes(TRAINER_SECRET)
    return made


def a_token(tokens: TrainerTokens) -> str:
    return tokens.issue(job_id="job-a", segment_id="job-a__seg_0", epoch=1, origin_epoch=1, now=0.0)


def test_tokens_of_the_secret_before_count_for_so_long_and_new_ones_are_of_the_new(home: Settings) -> None:
    clock = FakeClock()
    tokens = TrainerTokens(KeyFile(home.secret_file("trainer"), clock))
    old = a_token(tokens)
    rotate(home, ["trainer"], clock(), 2 * HOUR)
    new = a_token(tokens)
    assert tokens.read(old).epoch == tokens.read(new).epoch == 1
    with pytest.raises(Unauthorized, match="not one of this control plane"):
        TrainerTokens(TRAINER_SECRET).read(new)
    clock.advance(2 * HOUR + 1)
    with pytest.raises(Unauthorized, match="not one of this control plane"):
        tokens.read(old)
    assert tokens.read(new).epoch == 1


def test_requests_of_who_still_has_the_secret_before_are_answered_once_each(home: Settings) -> None:
    clock = FakeClock()
    server = ServiceSigner(KeyFile(home.secret_file("control"), clock))
    rotate(home, ["control"], clock(), 2 * HOUR)
    headers = ServiceSigner(CONTROL_SECRET).headers("POST", "/service/jobs", b"{}", clock())
    server.check("POST", "/service/jobs", b"{}", headers, clock())
    with pytest.raises(Unauthorized, match="was answered before"):
        server.check("POST", "/service/jobs", b"{}", headers, clock())
    fresh = ServiceSigner(KeyFile(home.secret_file("control"), clock))
    server.check("POST", "/service/jobs", b"{}", fresh.headers("POST", "/service/jobs", b"{}", clock()), clock())
    clock.advance(2 * HOUR + 1)
    late = ServiceSigner(CONTROL_SECRET).headers("POST", "/service/jobs", b"{}", clock())
    with pytest.raises(Unauthorized, match="no valid service signature"):
        server.check("POST", "/service/jobs", b"{}", late, clock())


def test_at_once_means_that_the_secret_before_counts_no_more(home: Settings) -> None:
    clock = FakeClock()
    tokens = TrainerTokens(KeyFile(home.secret_file("trainer"), clock))
    rotate(home, ["trainer"], clock(), 2 * HOUR)
    second = a_token(tokens)
    with pytest.raises(UserError, match=r"counts for 2\.0 h more, and what it signed would be refused"):
        rotate(home, ["trainer"], clock(), 2 * HOUR)
    assert tokens.read(second).epoch == 1
    rotate(home, ["trainer"], clock(), 0.0)
    with pytest.raises(Unauthorized):
        tokens.read(second)
    assert not home.secret_file("trainer.before").exists()


@pytest.mark.parametrize("broken_off", ["after the first one", "within the first one"])
def test_a_rotation_that_was_broken_off_goes_on_with_what_is_left_when_it_is_asked_for_again(
    home: Settings, broken_off: str
) -> None:
    if broken_off == "after the first one":
        rotate(home, ["control"], 1000.0, HOUR)
    else:
        home.secret_file("control.before").write_bytes(b"4600\n" + CONTROL_SECRET)
    control, want = home.secret_file("control").read_bytes(), ("trainer",)
    if broken_off == "within the first one":
        want = ("control", "trainer")
    assert rotate(home, ["control", "trainer"], 1060.0, HOUR) == want
    assert home.secret_file("trainer.before").read_bytes() == b"4660\n" + TRAINER_SECRET
    assert (home.secret_file("control").read_bytes() == control) is ("control" not in want)
    assert home.secret_file("control.before").read_bytes().endswith(b"\n" + CONTROL_SECRET)
    with pytest.raises(UserError, match=r"counts for 1\.0 h more"):
        rotate(home, ["control", "trainer"], 1061.0, HOUR)


def test_new_files_are_their_users_alone_and_no_secret_is_the_one_before(home: Settings) -> None:
    rotate(home, ["control", "trainer"], 1000.0, HOUR)
    for name in ("control", "control.before", "trainer", "trainer.before"):
        assert os.stat(home.secret_file(name)).st_mode & 0o777 == 0o600
    assert home.secret_file("control").read_bytes() != CONTROL_SECRET
    assert home.secret_file("control.before").read_bytes() == b"4600\n" + CONTROL_SECRET


def test_nothing_is_rotated_where_one_of_them_cannot_be(home: Settings) -> None:
    with pytest.raises(UserError, match="'postgres' is not a secret that can be rotated while jobs run; those are"):
        rotate(home, ["control", "postgres"], 0.0, HOUR)
    assert home.secret_file("control").read_bytes() == CONTROL_SECRET
