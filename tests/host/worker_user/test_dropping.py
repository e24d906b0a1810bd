"""From root to another user, for good. Each drop happens in a process of its own."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Sequence

import pytest

from elastic_core.host.worker_user import execute
from elastic_core.host.worker_user.dropping import drop
from elastic_core.host.worker_user.identity import WorkerUser

FACTS = """
import json, os, sys
from pathlib import Path
status = dict(line.split(":\\t") for line in Path("/proc/self/status").read_text().splitlines() if ":\\t" in line)
back = []
for regain in (lambda: os.setuid(0), lambda: os.setgid(0), lambda: os.setgroups([0]), lambda: os.kill(1, 0)):
    try:
        back.append(regain())
    except PermissionError:
        pass
print(json.dumps({
    "ids": [os.getresuid(), os.getresgid(), os.getgroups()], "back": back, "status": status,
    "environ": os.access("/proc/self/environ", os.R_OK), "file": os.stat(sys.argv[1]).st_mode & 0o777,
}))
"""


def facts(arguments: Sequence[str]) -> dict[str, object]:
    done = subprocess.run([sys.executable, *arguments], capture_output=True, text=True, check=True)
    said: dict[str, object] = json.loads(done.stdout)
    return said


def test_nothing_of_root_is_left_and_nothing_comes_back(user: WorkerUser) -> None:
    code = (
        "import os, sys\nfrom elastic_core.host.worker_user.dropping import drop\n"
        f"drop({user.uid}, {user.gid})\n"
        "sys.argv.append(f'/tmp/elastic-dropped-{os.getpid()}')\nopen(sys.argv[1], 'w').close()\n" + FACTS
        + "\nos.unlink(sys.argv[1])"
    )  # fmt: skip
    found = facts(["-c", code])
    assert found["ids"] == [[user.uid] * 3, [user.gid] * 3, []]
    assert found["back"] == []
    assert found["file"] == 0o600
    assert found["environ"] is True  # as if it had been executed: ranks of a host map each other's memory
    status = found["status"]
    assert isinstance(status, dict)
    assert {int(status[name], 16) for name in ("CapEff", "CapPrm", "CapAmb")} == {0}
    assert status["NoNewPrivs"] == "1"


def test_a_process_still_dies_with_its_parent(user: WorkerUser) -> None:
    reading, writing = os.pipe()
    parent = os.fork()
    if parent == 0:
        child = os.fork()
        if child == 0:
            from elastic_core.host.process import die_with_parent

            die_with_parent()
            drop(user.uid, user.gid)
            os.write(writing, b"dropped")
            signal.pause()
        os.close(writing)
        signal.pause()
    os.close(writing)
    assert os.read(reading, 7) == b"dropped"
    os.kill(parent, signal.SIGKILL)
    os.waitpid(parent, 0)
    assert os.read(reading, 1) == b""  # the end of the pipe, whose last writer was the child
    os.close(reading)


@pytest.mark.parametrize("ids", [(0, 1), (1, 0), (-1, 5)])
def test_root_is_nobody_to_become(ids: tuple[int, int]) -> None:
    with pytest.raises(ValueError, match="not those of an unprivileged user"):
        drop(*ids)


def test_a_module_is_executed_as_the_user_with_its_own_arguments(user: WorkerUser) -> None:
    command = execute.command(user.ids, "tests.launch.probe", ["facts", "--an", "argument"])
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    found = json.loads(done.stdout)
    assert found["argv"] == ["facts", "--an", "argument"]
    assert found["umask"] == 0o077
    assert execute.command((), "this", ["a"]) == [sys.executable, "-m", "this", "a"]
    ended = subprocess.run(execute.command(user.ids, "tests.launch.probe", ["exit", "7"]), check=False)
    assert ended.returncode == 7
