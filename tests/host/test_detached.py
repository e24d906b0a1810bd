"""What servers share that outlive their starter: one secret, whoever asks first."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from elastic_core.errors import UserError
from elastic_core.host.detached import is_installed, shared_secret

SERVER = """
import sys, time
from pathlib import Path
from elastic_core.host.detached import detach
ready = detach()
Path(sys.argv[1]).write_text("up")
ready()
sys.stdin.read()
"""


def test_all_who_ask_first_get_the_same_secret_which_nobody_else_may_read(tmp_path: Path) -> None:
    path = tmp_path / "secrets" / "memory"
    with ThreadPoolExecutor(8) as pool:
        found = set(pool.map(lambda _: shared_secret(path), range(32)))
    assert found == {path.read_bytes()}
    assert len(path.read_bytes()) >= 48
    assert path.stat().st_mode & 0o777 == 0o600
    assert [entry.name for entry in path.parent.iterdir()] == ["memory"], "no half of it is left"


def test_without_hard_links_there_is_one_all_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(source: str, target: Path) -> None:
        raise OSError(errno.EPERM, os.strerror(errno.EPERM), source, None, str(target))

    monkeypatch.setattr(os, "link", refused)
    test_all_who_ask_first_get_the_same_secret_which_nobody_else_may_read(tmp_path)


@pytest.mark.parametrize("cut", [b"", b"x" * 31])
def test_one_that_was_cut_off_is_refused(tmp_path: Path, cut: bytes) -> None:
    (tmp_path / "memory").write_bytes(cut)
    with pytest.raises(UserError, match=rf"has {len(cut)} bytes, and at least 32 are needed.*Remove it"):
        shared_secret(tmp_path / "memory")


def test_an_installation_whose_secret_is_gone_or_another_is_there_no_more(tmp_path: Path) -> None:
    path = tmp_path / "memory"
    secret = shared_secret(path)
    assert is_installed(path, secret)
    path.write_text("of another installation")
    assert not is_installed(path, secret)
    path.unlink()
    assert not is_installed(path, secret)


def test_who_starts_a_server_goes_on_when_it_can_be_reached(tmp_path: Path) -> None:
    """The one that was started ends, while the server runs on in a session of its own, until its input ends here."""
    reading, writing = os.pipe()
    up = tmp_path / "up"
    started = subprocess.run([sys.executable, "-c", SERVER, str(up)], stdin=reading, check=False, timeout=60)
    assert (started.returncode, up.read_text()) == (0, "up")
    os.close(reading)
    os.close(writing)
