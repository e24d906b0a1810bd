"""What a fork server runs is as `python -m` would have run it; where it cannot, Python is executed."""

from __future__ import annotations

import json
import logging
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from elastic_core.host import fork_client
from elastic_core.host.environment import allowed
from elastic_core.host.messages import ForkServerProcess
from elastic_core.host.process import FORKED_FROM, ProcessId, marked
from elastic_core.host.rundir import RunDir
from elastic_core.launch import fork_server
from tests.launch.builders import wait_for

PROBE = "tests.launch.probe"


@pytest.fixture
def forking(executing_home: Path, fork_server_of_scripts: Path) -> Path:
    """A home with a fork server."""
    fork_client.folder_of(executing_home).symlink_to(fork_server_of_scripts)
    return executing_home


def run(home: Path, *argv: str, timeout: float = 20.0, **env: str) -> tuple[int, str]:
    """Exit code and output of the probe."""
    environ = {**allowed(os.environ), **env}
    with (home / "output").open("w+b") as output:
        files = (subprocess.DEVNULL, output.fileno(), output.fileno())
        code = fork_client.run_module(
            home, PROBE, argv, stdio=files, env=environ, cwd=Path.cwd(), timeout=timeout, pass_fds=(output.fileno(),)
        )  # fmt: skip
        output.seek(0)
        return code, output.read().decode()


def facts(home: Path, **env: str) -> dict[str, object]:
    code, said = run(home, "facts", **env)
    assert code == 0, said
    told: dict[str, object] = json.loads(said)
    return told


def test_a_module_finds_what_a_new_interpreter_would(executing_home: Path, fork_server_of_scripts: Path) -> None:
    executed = facts(executing_home, OF_ITS_OWN="1")
    fork_client.folder_of(executing_home).symlink_to(fork_server_of_scripts)
    forked = facts(executing_home, OF_ITS_OWN="1")
    assert (executed.pop("forked"), forked.pop("forked")) == (False, True)
    assert (executed.pop("parent"), forked.pop("parent")) != (forked.get("pid"), os.getpid())
    assert executed.pop("random") != forked.pop("random")
    assert executed == forked
    assert executed["leads_session"]
    assert "OF_ITS_OWN" in str(executed["env"])


def test_forks_do_not_draw_the_same_numbers(forking: Path) -> None:
    assert len({str(facts(forking)["random"]) for _ in range(4)}) == 4


@pytest.mark.parametrize(("argv", "code"), [(("exit", "0"), 0), (("exit", "7"), 7), (("raise",), 1), (("die",), -9)])
def test_the_exit_code_comes_back(home: Path, request: pytest.FixtureRequest, argv: tuple[str, ...], code: int) -> None:
    if request.node.callspec.params["home"] == "forked":
        assert facts(home)["forked"]
    got, said = run(home, *argv)
    assert got == code
    assert ("went wrong" in said) == (argv == ("raise",))


def test_what_takes_too_long_is_killed_with_all_that_it_started(forking: Path) -> None:
    with pytest.raises(subprocess.TimeoutExpired):
        run(forking, "hang", str(forking / "pids"), timeout=1.0)
    pids = [int(pid) for pid in (forking / "pids").read_text().split()]
    assert len(pids) == 2
    wait_for(lambda: not any(ProcessId.of(pid) for pid in pids))


def test_what_a_client_that_is_killed_had_started_ends_with_it(forking: Path) -> None:
    code = (
        "from pathlib import Path; from tests.launch.test_fork_server import run\n"
        f"run(Path({str(forking)!r}), 'hang', {str(forking / 'pids')!r})"
    )
    client = subprocess.Popen([sys.executable, "-c", code])
    wait_for(lambda: (forking / "pids").exists() and len((forking / "pids").read_text().split()) == 2)
    client.kill()
    client.wait()
    wait_for(lambda: not any(ProcessId.of(int(pid)) for pid in (forking / "pids").read_text().split()))


@pytest.mark.parametrize(
    ("name", "value"), [("PYTHONPATH", "/elsewhere"), ("LD_LIBRARY_PATH", "/elsewhere"), ("OMP_NUM_THREADS", "3")]
)
def test_where_a_fork_could_not_have_the_environment_python_is_executed(
    forking: Path, name: str, value: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    env = {name: value if name != "PYTHONPATH" else os.pathsep.join([os.getcwd(), value])}
    assert not facts(forking, **env)["forked"]
    assert "differ from what the fork server was started with" in caplog.text


def test_what_is_too_large_for_a_request_is_executed(forking: Path) -> None:
    half = fork_client.MAX_REQUEST // 2
    assert facts(forking, LARGE="x" * (half - 2_000), TOO="y" * (half - 2_000))["forked"]
    assert not facts(forking, LARGE="x" * half, TOO="y" * half)["forked"]  # and not taken for a client that hung up


def test_only_the_platforms_own_modules_are_run(forking: Path) -> None:
    request = fork_client.Request(module="this", argv=(), env={}, cwd="/", numbers=(0, 1, 2))
    with open(os.devnull, "r+b") as null:
        files = [null.fileno()] * 3
        assert fork_client.run(forking, request, files, 20.0) is None


def test_a_request_that_cannot_be_understood_harms_nobody(forking: Path) -> None:
    for nonsense in (b"", b"{", b"[]", b'{"module": 1}', os.urandom(10_000)):
        with fork_client._connect(fork_client.folder_of(forking)) as connection:
            if nonsense:
                connection.send(nonsense)
                assert connection.recv(100) == b""
    assert facts(forking)["forked"]


@pytest.mark.skipif(os.getuid() != 0, reason="only root can become another user")
def test_strangers_are_not_answered(forking: Path, fork_server_of_scripts: Path) -> None:
    for path in (*fork_server_of_scripts.parents, fork_server_of_scripts, fork_server_of_scripts / fork_client.SOCKET):
        if path.stat().st_uid == os.getuid() and not path.is_mount():
            os.chmod(path, path.stat().st_mode | 0o777)  # it is not the folder's mode alone that keeps them out
    code = (
        "import os, socket, sys; os.setuid(65534)\n"
        "connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)\n"
        f"connection.connect({str(fork_server_of_scripts / fork_client.SOCKET)!r})\n"
        "sys.exit(len(connection.recv(100)))"
    )
    try:
        assert subprocess.run([sys.executable, "-c", code], check=False, timeout=20).returncode == 0
    finally:
        os.chmod(fork_server_of_scripts, 0o700)
    assert facts(forking)["forked"]


def test_one_that_was_killed_is_started_again_for_the_next(executing_home: Path) -> None:
    home, environ = executing_home, allowed(os.environ)
    folder = fork_client.folder_of(home)
    starts = [threading.Thread(target=fork_client.start, args=(home, Path.cwd(), environ)) for _ in range(4)]
    for thread in starts:
        thread.start()
    for thread in starts:
        thread.join()
    first = RunDir(folder).require(ForkServerProcess).process
    assert [process for process in marked(FORKED_FROM, str(folder)) if process.alive()] == [first]
    wait_for((folder / fork_client.SOCKET).exists, 60.0)
    assert len(os.listdir(f"/proc/{first.pid}/task")) == 1  # loading torch and all has started no thread
    assert {path.name: path.stat().st_mode & 0o077 for path in folder.iterdir()}.keys() >= {"socket", "process.json"}
    assert folder.stat().st_mode & 0o077 == 0
    first.send(signal.SIGKILL)
    wait_for(lambda: not first.alive())
    assert not facts(home)["forked"]  # that start is cold
    second = RunDir(folder).require(ForkServerProcess).process
    assert second != first
    assert second.alive()
    fork_client.stop(home)
    assert not second.alive()
    assert not facts(home)["forked"]
    time.sleep(0.1)
    assert marked(FORKED_FROM, str(folder)) == []  # one that was ended stays so


def test_every_module_that_may_be_run_has_its_function() -> None:
    for module, function in fork_server.ENTRIES.items():
        assert callable(getattr(__import__(module, fromlist=[function]), function))
