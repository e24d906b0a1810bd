"""Up, down and status of a stack of services, whatever its programs are.

`up` on a running stack starts only what is not running. A supervisor that was killed leaves its programs behind;
the next `up` ends them first (they are known by their mark), as the next `down` does.
"""

from __future__ import annotations

import fcntl
import os
import signal
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from elastic_core.errors import InfrastructureError, UserError
from elastic_core.host.process import end_processes
from elastic_core.services import settings_in_force
from elastic_core.services.ports import require_free
from elastic_core.services.supervision.marks import of_home, of_program
from elastic_core.services.supervision.program import Program, Stack, Stage
from elastic_core.services.supervision.supervise import ProgramState, Supervisor
from elastic_core.text import tail

Tell = Callable[[str], None]
POLL_SECONDS = 0.4  # between two looks at what is not healthy yet; each costs the services a little


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceStatus:
    name: str
    state: str
    pid: int | None
    started: float | None
    healthy: bool
    detail: str
    log: str


def up(
    stack: Stack, host: str, environment: Mapping[str, str], *, wait_seconds: float | None, tell: Tell
) -> list[ServiceStatus]:
    """Start what does not run; with `wait_seconds`, return when all is healthy. Of a stack that runs already it tells
    which settings are others now, and not in force.

    Raises `UserError` when a port is taken or the stack runs with other settings, `InfrastructureError` with the
    last lines of its log when a program does not get healthy in time.
    """
    supervisor = Supervisor(stack.home)
    with _lock(supervisor):
        if supervisor.running():
            changed = settings_in_force.differences(stack.home, environment)
            _require_same(supervisor, stack, changed)
            if changed:
                tell("not in force until a restart (`elastic up --restart`):")
            for difference in changed:
                tell(f"  {difference}")
        else:
            leftovers = of_home(stack.home)
            if leftovers:
                tell(f"ending {len(leftovers)} processes that an earlier run left behind")
                for stage in reversed(stack.stages):
                    _clear(stack.home, stage)
                _clear_rest(stack.home)
            require_free(host, (port for program in stack.programs() for port in program.ports))
            supervisor.configure(supervisor.files(stack.programs()))
            settings_in_force.record(stack.home, environment)
            supervisor.start(dict(environment))
        for stage in stack.stages:
            _start(supervisor, stage, tell)
            if stage.wait:
                _wait(supervisor, stage.programs, wait_seconds or 60.0)
        if wait_seconds is not None:
            _wait(supervisor, stack.programs(), wait_seconds)
    return status(stack)


def _start(supervisor: Supervisor, stage: Stage, tell: Tell) -> None:
    states = supervisor.states()
    missing = [program.name for program in stage.programs if states[program.name].state != "RUNNING"]
    if not missing:
        return
    stage.prepare()
    tell("starting " + ", ".join(missing))
    for name in missing:
        supervisor.start_program(name)


def _wait(supervisor: Supervisor, programs: Sequence[Program], seconds: float) -> None:
    """Return when all are healthy. Raises `InfrastructureError` about the first that is hopeless or late."""
    deadline = time.monotonic() + seconds
    waiting = list(programs)
    while waiting:
        states = supervisor.states()
        problems = {program: problem for program in waiting if (problem := _problem(program, states[program.name]))}
        for program, problem in problems.items():
            if states[program.name].state == "FATAL" or time.monotonic() > deadline:
                log = _log(supervisor, program.name)
                raise InfrastructureError(
                    f"{program.name} is not healthy after {seconds:g} s: {problem}\n--- end of {log}\n{tail(log, 15)}"
                )
        waiting = list(problems)
        time.sleep(POLL_SECONDS if waiting else 0)


def _problem(program: Program, state: ProgramState) -> str | None:
    if state.state == "RUNNING" or (state.state == "STARTING" and program.health):
        return program.health(state.started) if program.health else None
    return f"{state.state}: {state.detail}"


def down(stack: Stack, tell: Tell) -> int:
    """Stop everything, stage by stage; the number of processes that no supervisor knew of."""
    supervisor = Supervisor(stack.home)
    with _lock(supervisor):
        alive, ended = supervisor.running(), 0
        for stage in reversed(stack.stages):
            if alive:
                _stop(supervisor, stage, tell)
            ended += _clear(stack.home, stage)
            stage.retire()
        if alive:
            supervisor.shutdown()
        return ended + _clear_rest(stack.home)


def _stop(supervisor: Supervisor, stage: Stage, tell: Tell) -> None:
    states = supervisor.states()  # it may run with other settings than this stack's
    programs = [program for program in stage.programs if program.name in states]
    if programs:
        tell("stopping " + ", ".join(program.name for program in programs))
        patience = max(program.stop_seconds for program in programs) + 10.0
        supervisor.stop_programs([program.name for program in programs], patience)


def _clear(home: Path, stage: Stage) -> int:
    """End what is left of a stage's programs, by their own signals; how many processes that were."""
    total = 0
    for name in {program.stop_signal for program in stage.programs}:
        programs = [program.name for program in stage.programs if program.stop_signal == name]
        leftovers = [process for program in programs for process in of_program(home, program)]
        end_processes(leftovers, 10.0, signal.Signals[f"SIG{name}"])
        total += len(leftovers)
    return total


def _clear_rest(home: Path) -> int:
    """End what carries this home's mark and belongs to no program of the stack any more."""
    leftovers = of_home(home)
    stubborn = end_processes(leftovers, 10.0)
    if stubborn:
        raise InfrastructureError(f"processes that do not end: {[process.pid for process in stubborn]}")
    return len(leftovers)


def status(stack: Stack) -> list[ServiceStatus]:
    supervisor = Supervisor(stack.home)
    states = supervisor.states() if supervisor.running() else {}
    return [_status(supervisor, program, states.get(program.name)) for program in stack.programs()]


def _status(supervisor: Supervisor, program: Program, state: ProgramState | None) -> ServiceStatus:
    problem = _problem(program, state) if state else "not started"
    return ServiceStatus(
        name=program.name,
        state=state.state if state else "STOPPED",
        pid=state.pid or None if state else None,
        started=state.started if state and state.pid else None,
        healthy=problem is None,
        detail=problem or "",
        log=str(_log(supervisor, program.name)),
    )


def _log(supervisor: Supervisor, name: str) -> Path:
    return supervisor.logs / f"{name}.log"


def _require_same(supervisor: Supervisor, stack: Stack, changed: Sequence[str]) -> None:
    for path, text in supervisor.files(stack.programs()).items():
        if not path.exists() or path.read_text() != text:
            which = "; ".join(changed) or f"see {path}"
            raise UserError(
                f"the services of {stack.home} run already, with other settings than the ones now given ({which}). "
                "`elastic up --restart` stops them, for which jobs reach a boundary first, and starts them with these."
            )


@contextmanager
def _lock(supervisor: Supervisor) -> Iterator[None]:
    """One `up` or `down` of a home at a time; a second one waits."""
    supervisor.folder.mkdir(parents=True, exist_ok=True)
    fd = os.open(supervisor.folder / "lock", os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        yield
    finally:
        os.close(fd)
