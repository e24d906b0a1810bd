"""Running a user's code outside training in a process of its own: what it prints, leaks or breaks stays there.

`call` runs `python -m <module> ... --output <file>` with an allow-listed environment, by the fork server where there is
one; the module's `main` ends in `answer`. The error of the child is raised here again, of the same class.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from elastic_core.errors import BY_CODE, ElasticError, InfrastructureError, UserError
from elastic_core.host import fork_client
from elastic_core.host.environment import job_environment, worker_settings
from elastic_core.host.exits import ExitCode, exit_code
from elastic_core.host.process import be_ended_first
from elastic_core.host.worker_user.foreign_files import read_message
from elastic_core.host.worker_user.giving import give_file, let_read
from elastic_core.host.worker_user.identity import WorkerUser
from elastic_core.settings import Settings
from elastic_core.spec import JobSpec
from elastic_core.text import tail

_log = logging.getLogger(__name__)


def call(module: str, spec: JobSpec, settings: Settings, arguments: Sequence[str], timeout_seconds: float) -> Any:
    """What `module` answers about the spec, as plain JSON.

    Raises the child's `ElasticError`; `UserError` with the traceback's last line for the user's own exception;
    `InfrastructureError` for a child that was killed or took too long.
    """
    with tempfile.TemporaryDirectory(prefix="elastic-") as folder:
        spec_file, output = Path(folder) / "spec.json", Path(folder) / "output.json"
        spec_file.write_text(spec.model_dump_json())
        user = WorkerUser.of(settings)
        if user is not None:
            output.touch()
            let_read(Path(folder), user)
            give_file(output, user)
        options = ["--spec", str(spec_file), "--output", str(output), *arguments]
        with (Path(folder) / "said.log").open("w+b") as said:
            try:
                code = fork_client.run_module(
                    settings.home, module, options, stdio=(subprocess.DEVNULL, said.fileno(), said.fileno()),
                    env=_environment(settings, user), cwd=settings.project.absolute(), timeout=timeout_seconds,
                    user=user.ids if user else (),
                )  # fmt: skip
            except subprocess.TimeoutExpired as error:
                raise InfrastructureError(
                    f"{module} for {spec.entry_point!r} took more than {timeout_seconds:g} s and was stopped."
                ) from error
            content = read_message(Path(folder), output.name, owners_only=False)
            if not content:
                lines = tail(Path(said.name), 1).strip() or "it said nothing"
                raise InfrastructureError(
                    f"{module} for {spec.entry_point!r} ended with exit code {code} and no answer: {lines}"
                )
        answer = json.loads(content)
    if "result" in answer:
        return answer["result"]
    raise BY_CODE.get(answer["code"], UserError)(answer["error"])


def parser(module: str, description: str | None) -> argparse.ArgumentParser:
    arguments = argparse.ArgumentParser(prog=f"python -m {module}", description=description)
    arguments.add_argument("--spec", type=Path, required=True, help="job spec, a JSON file")
    arguments.add_argument("--output", type=Path, help="where to write the answer as well")
    return arguments


def read_spec(path: Path) -> JobSpec:
    return JobSpec.model_validate_json(path.read_text())


def answer(output: Path | None, work: Callable[[], Any]) -> int:
    """Print what `work` gives as JSON (and write it to `output`), or why it could not; the process's exit code."""
    be_ended_first()
    try:
        result = {"result": work()}
    except Exception as error:  # noqa: BLE001 - whatever the user's code raises is the answer
        _log.exception("no answer")
        code = error.code if isinstance(error, ElasticError) else UserError.code
        last = str(error) if isinstance(error, ElasticError) else traceback.format_exception_only(error)[-1].strip()
        _write(output, {"code": code, "error": last})
        return exit_code(error)
    _write(output, result)
    sys.stdout.write(json.dumps(result["result"]) + "\n")
    return ExitCode.DONE


def _write(output: Path | None, content: Any) -> None:
    if output is not None:
        output.write_text(json.dumps(content))


def _environment(settings: Settings, user: WorkerUser | None) -> dict[str, str]:
    known = {f"ELASTIC_{name.upper()}": str(value) for name, value in worker_settings(settings).items() if value}
    return {**job_environment(os.environ, settings), **known, **(user.environment() if user else {})}
