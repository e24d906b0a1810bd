"""Up, down and what faults leave, with a real supervisor and programs that weigh nothing."""

from __future__ import annotations

import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from elastic_core.errors import InfrastructureError, UserError
from elastic_core.host.process import ProcessId
from elastic_core.services import stack as services
from elastic_core.services.supervision.marks import of_home, of_program
from elastic_core.services.supervision.program import Port, Program, Stack, Stage
from elastic_core.services.supervision.supervise import Supervisor

LOOPBACK = "127.0.0.1"

# Starts a child as Airflow does: in a process group of its own, which no signal to the parent's reaches, and renamed.
WITH_CHILD = """
import os, time
from setproctitle import setproctitle
if os.fork() == 0:
    os.setsid()
    setproctitle("renamed " * 500)
time.sleep(1000)
"""


def sleeper(name: str = "sleeper", code: str = "import time; time.sleep(1000)", **options: object) -> Program:
    return Program(name=name, command=(sys.executable, "-c", code), stop_seconds=5, **options)  # type: ignore[arg-type]


def server() -> Program:
    with socket.create_server((LOOPBACK, 0)) as probe:
        number = probe.getsockname()[1]
    code = f"import socket, time; s = socket.create_server(('{LOOPBACK}', {number})); time.sleep(1000)"
    return sleeper("server", code, ports=(Port(number, "mlflow_port"),))


def stack_of(home: Path, *programs: Program) -> Stack:
    return Stack(home=home, stages=tuple(Stage(programs=(program,)) for program in programs))


def up(stack: Stack, seconds: float = 30.0) -> dict[str, services.ServiceStatus]:
    found = services.up(stack, LOOPBACK, os.environ, wait_seconds=seconds, tell=lambda line: None)
    return {service.name: service for service in found}


def down(stack: Stack) -> int:
    return services.down(stack, tell=lambda line: None)


def eventually(condition: Callable[[], object], seconds: float = 15.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not come about in time"
        time.sleep(0.05)


def test_up_starts_everything_and_down_leaves_no_process(home: Path) -> None:
    stack = stack_of(home, sleeper(), sleeper("parent", WITH_CHILD))
    assert all(service.healthy for service in up(stack).values())
    eventually(lambda: len(of_program(home, "parent")) == 2)
    supervisor = ProcessId.of(Supervisor(home).pid())
    down(stack)
    assert of_home(home) == []
    assert supervisor
    assert not supervisor.alive()
    assert [service.state for service in services.status(stack)] == ["STOPPED", "STOPPED"]


def test_a_second_up_and_a_second_down_change_nothing(home: Path) -> None:
    stack = stack_of(home, sleeper())
    first = up(stack)
    assert up(stack) == first
    down(stack)
    assert down(stack) == 0


def test_two_ups_at_once_start_one_supervisor(home: Path) -> None:
    stack = stack_of(home, sleeper())
    threads = [threading.Thread(target=up, args=(stack,)) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(of_program(home, "sleeper")) == 1


@pytest.mark.nightly
def test_up_after_a_killed_supervisor_ends_what_it_left_and_starts_anew(home: Path) -> None:
    stack = stack_of(home, server(), sleeper("parent", WITH_CHILD))
    up(stack)
    eventually(lambda: len(of_program(home, "parent")) == 2)
    left = of_home(home)
    os.kill(Supervisor(home).pid(), signal.SIGKILL)
    eventually(lambda: not Supervisor(home).running())
    assert [process for process in left if process.alive()] == left
    assert all(service.healthy for service in up(stack).values())
    assert [process for process in left if process.alive()] == []


def test_down_after_a_killed_supervisor_leaves_no_process(home: Path) -> None:
    stack = stack_of(home, sleeper("parent", WITH_CHILD))
    up(stack)
    eventually(lambda: len(of_home(home)) == 2)
    os.kill(Supervisor(home).pid(), signal.SIGKILL)
    assert down(stack) == 2
    assert of_home(home) == []


def test_a_killed_program_is_restarted_and_its_orphans_are_ended(home: Path) -> None:
    stack = stack_of(home, sleeper("parent", WITH_CHILD))
    first = up(stack)["parent"].pid
    eventually(lambda: len(of_program(home, "parent")) == 2)
    (orphan,) = [process for process in of_program(home, "parent") if process.pid != first]
    assert first
    os.kill(first, signal.SIGKILL)
    eventually(lambda: services.status(stack)[0].healthy and services.status(stack)[0].pid != first)
    eventually(lambda: not orphan.alive())


def test_a_taken_port_is_named_with_its_setting_and_its_owner(home: Path) -> None:
    with socket.create_server((LOOPBACK, 0)) as taken:
        number = taken.getsockname()[1]
        stack = stack_of(home, sleeper(ports=(Port(number, "airflow_port"),)))
        with pytest.raises(UserError) as caught:
            up(stack)
    message = str(caught.value)
    assert f"port {number} on {LOOPBACK} is taken" in message
    assert f"pid {os.getpid()}" in message
    assert "ELASTIC_AIRFLOW_PORT=" in message
    assert of_home(home) == []


def test_the_ports_of_the_running_services_are_not_in_their_own_way(home: Path) -> None:
    stack = stack_of(home, server())
    up(stack)
    assert up(stack)["server"].healthy


def test_other_settings_are_refused_while_services_run_and_touch_nothing(home: Path) -> None:
    stack = stack_of(home, sleeper())
    first = up(stack)
    before = {path: path.read_text() for path in (home / "services").glob("s*.*") if path.is_file()}
    with pytest.raises(UserError, match=r"other settings.*elastic up --restart"):
        up(stack_of(home, sleeper(environment={"COLOUR": "blue"})))
    assert before == {path: path.read_text() for path in before}
    assert up(stack) == first


@pytest.mark.nightly
def test_a_program_that_does_not_come_up_is_told_with_the_end_of_its_log(home: Path) -> None:
    never = "it does not answer"  # however long Python takes to come to its end
    stack = stack_of(home, sleeper("broken", "raise SystemExit('no such table: jobs')", health=lambda started: never))
    with pytest.raises(InfrastructureError, match="broken is not healthy after 3 s") as caught:
        up(stack, seconds=3.0)
    assert "no such table: jobs" in str(caught.value)


def test_a_program_is_waited_for_until_it_is_healthy(home: Path) -> None:
    sign = home / "ready"
    code = f"import pathlib, time; time.sleep(1); pathlib.Path({str(sign)!r}).touch(); time.sleep(1000)"
    program = sleeper(code=code, health=lambda started: None if sign.exists() else "no sign yet")
    up(stack_of(home, program))
    assert sign.exists()


def test_stages_start_in_order_and_stop_in_the_opposite_one(home: Path) -> None:
    done: list[str] = []

    def stage(name: str, wait: bool) -> Stage:
        return Stage(
            programs=(sleeper(name),),
            prepare=lambda: done.append(f"prepare {name}: {[s.name for s in services.status(stack) if s.healthy]}"),
            retire=lambda: done.append(f"retire {name}: {[s.name for s in services.status(stack) if s.healthy]}"),
            wait=wait,
        )

    stack = Stack(home=home, stages=(stage("first", True), stage("second", False)))
    up(stack)
    down(stack)
    assert done == [
        "prepare first: []",
        "prepare second: ['first']",
        "retire second: ['first']",
        "retire first: []",
    ]


def test_secrets_reach_a_program_from_their_files_alone(home: Path) -> None:
    secret = home / "secret"
    secret.write_text("hidden-value\n")
    seen = home / "seen"
    code = f"import os, time; open({str(seen)!r}, 'w').write(os.environ['PASSWORD'] + '.'); time.sleep(1000)"
    stack = stack_of(home, sleeper(code=code, secrets={"PASSWORD": secret}))
    up(stack)
    assert seen.read_text() == "hidden-value."
    written = [path for folder in ("services", "logs") for path in (home / folder).iterdir() if path.is_file()]
    assert [path for path in written if "hidden-value" in path.read_text()] == []


def test_a_home_with_a_long_path_a_space_and_a_percent_sign_works(home: Path) -> None:
    deep = home / ("deep % " + "x" * 80) / ("y" * 40)
    deep.mkdir(parents=True)
    stack = stack_of(deep, sleeper())
    try:
        assert up(stack)["sleeper"].healthy
    finally:
        down(stack)
    assert of_home(deep) == []
