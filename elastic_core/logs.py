"""Logging of the platform's own processes, configured once: lines for people, or JSON (`ELASTIC_LOG_FORMAT=json`).

Library code asks for a logger and never prints. What is a process of its own (worker, tracker, policy process, CLI)
calls `configure` when it starts. Inside Airflow nobody does: there its own configuration holds. What workers, agents
and cache servers load logs by the standard library alone (`logging.getLogger`), which gives the same lines: importing
structlog takes a fifth of a second, which would be part of every start.
"""

from __future__ import annotations

import json
import logging
import os
import sys
import time
from typing import TYPE_CHECKING, TextIO

if TYPE_CHECKING:
    from structlog.typing import FilteringBoundLogger

FORMAT_VARIABLE = "ELASTIC_LOG_FORMAT"  # `Settings.log_format`; read here by name, since agents load no settings
_ROOT = "elastic_core"
_KNOWN = frozenset(vars(logging.makeLogRecord({}))) | {"message", "taskName"}


def get_logger(name: str) -> FilteringBoundLogger:
    """A structlog logger: `log.warning("what happened, for a person", job=...)`.

    Where nobody has configured structlog yet (Airflow does, in its processes), it is sent through `logging`.
    """
    import structlog

    if not structlog.is_configured():
        _send_through_logging()
    logger: FilteringBoundLogger = structlog.get_logger(name)
    return logger


def _send_through_logging() -> None:
    import structlog

    structlog.configure(
        processors=[structlog.contextvars.merge_contextvars, structlog.stdlib.render_to_log_kwargs],
        wrapper_class=structlog.make_filtering_bound_logger(logging.INFO),
        logger_factory=structlog.stdlib.LoggerFactory(),
    )


def configure(process: str, stream: TextIO | None = None) -> None:
    """Send what the platform logs in this process to `stream` (standard error), a line an event.

    `process`: what this process is, in each line. A user's own logging configuration is left as it is; one that a
    library made for structlog (importing Airflow does) is replaced, or its format would be the platform's.
    """
    if "structlog" in sys.modules:
        _send_through_logging()
    handler = logging.StreamHandler(stream or sys.stderr)
    as_json = os.environ.get(FORMAT_VARIABLE, "console") == "json"
    handler.setFormatter(_JsonLines(process) if as_json else _Lines(process))
    logger = logging.getLogger(_ROOT)
    logger.handlers[:] = [handler]
    logger.setLevel(logging.INFO)
    logger.propagate = False


class _Lines(logging.Formatter):
    """`2026-05-04T03:02:01+0000 agent 4711: what happened job=digits`; the level where it is worse than information."""

    def __init__(self, process: str) -> None:
        super().__init__()
        self._process = process

    def format(self, record: logging.LogRecord) -> str:
        at = time.strftime("%Y-%m-%dT%H:%M:%S%z", time.localtime(record.created))
        level = f" {record.levelname.lower()}:" if record.levelno > logging.INFO else ""
        facts = "".join(f" {name}={value}" for name, value in _facts(record).items())
        line = f"{at} {self._process} {record.process}:{level} {record.getMessage()}{facts}"
        return f"{line}\n{self.formatException(record.exc_info)}" if record.exc_info else line


class _JsonLines(_Lines):
    """One JSON object a line: time (Unix seconds), level, process, pid, logger, event, the facts, the traceback."""

    def format(self, record: logging.LogRecord) -> str:
        line = {
            "time": record.created,
            "level": record.levelname.lower(),
            "process": self._process,
            "pid": record.process,
            "logger": record.name,
            "event": record.getMessage(),
            **_facts(record),
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str)


def _facts(record: logging.LogRecord) -> dict[str, object]:
    return {name: value for name, value in vars(record).items() if name not in _KNOWN}
