"""What the platform's own processes log: one line an event, for people or for programs."""

from __future__ import annotations

import io
import json
import logging
import subprocess
import sys
from collections.abc import Iterator

import pytest
import structlog

from elastic_core.logs import FORMAT_VARIABLE, configure, get_logger
from elastic_core.settings import Settings


@pytest.fixture(autouse=True)
def as_before() -> Iterator[None]:
    logger = logging.getLogger("elastic_core")
    handlers, level, propagate = list(logger.handlers), logger.level, logger.propagate
    libraries = structlog.get_config() if structlog.is_configured() else None
    yield
    structlog.reset_defaults()
    if libraries is not None:
        structlog.configure(**libraries)
    logger.handlers[:], logger.propagate = handlers, propagate
    logger.setLevel(level)


def test_an_event_is_a_line_with_its_process_and_its_facts() -> None:
    out = io.StringIO()
    configure("worker", out)
    get_logger("elastic_core.train").info("a checkpoint was written", step=7)
    (line,) = out.getvalue().splitlines()
    assert "worker " in line
    assert line.endswith(": a checkpoint was written step=7")


def test_a_configuration_that_a_library_made_before_is_replaced() -> None:
    out = io.StringIO()
    structlog.configure(processors=[structlog.processors.JSONRenderer()], logger_factory=structlog.PrintLoggerFactory())
    configure("worker", out)
    get_logger("elastic_core.train").info("a checkpoint was written", step=7)
    assert out.getvalue().endswith(": a checkpoint was written step=7\n")


def test_what_is_worse_than_information_says_so() -> None:
    out = io.StringIO()
    configure("worker", out)
    get_logger("elastic_core.train").warning("the control plane does not answer")
    assert " warning: the control plane does not answer" in out.getvalue()


def test_the_standard_librarys_loggers_give_the_same_lines() -> None:
    out = io.StringIO()
    configure("agent", out)
    logging.getLogger("elastic_core.launch.agent").info("worker %s ended", 3, extra={"code": 1})
    assert out.getvalue().endswith(": worker 3 ended code=1\n")


def test_json_has_the_event_its_facts_and_the_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(FORMAT_VARIABLE, "json")
    out = io.StringIO()
    configure("tracker", out)
    try:
        raise ValueError("no such run")
    except ValueError:
        get_logger("elastic_core.track").exception("an event could not be recorded", position=12)
    line = json.loads(out.getvalue())
    assert (line["event"], line["level"], line["process"], line["position"]) == (
        "an event could not be recorded", "error", "tracker", 12,
    )  # fmt: skip
    assert "ValueError: no such run" in line["exception"]


def test_nothing_goes_to_standard_output_where_nobody_configured_anything() -> None:
    code = "from elastic_core.logs import get_logger; get_logger('elastic_core.x').warning('the ledger is away')"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr.strip()) == ("", "the ledger is away")


def test_a_users_own_logging_is_left_alone() -> None:
    root = list(logging.getLogger().handlers)
    configure("worker", io.StringIO())
    assert logging.getLogger().handlers == root
    assert logging.getLogger("users.code").handlers == []


def test_the_format_is_a_setting_like_any_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(FORMAT_VARIABLE, "json")
    assert Settings().log_format == "json"
