"""The notifiers that the setting `ELASTIC_NOTIFIERS` names: `module:object`, an instance or what makes one.

They are the operator's own code, found on the services' path, beside `dags/` or installed. One that cannot be had is
told in words by `dags/elastic_notifiers.py`, as an import error of Airflow, and by `elastic doctor`, for which
`python -m` this module says what they are; jobs and the other notifiers go on without it.
"""

from __future__ import annotations

import logging
import sys
from importlib import import_module
from typing import Any

from airflow.sdk import BaseNotifier, get_parsing_context

from elastic_core.errors import UserError
from elastic_core.settings import Settings

NAME = "ELASTIC_NOTIFIERS"
log = logging.getLogger(__name__)


def parsed_notifiers(settings: Settings) -> tuple[BaseNotifier, ...]:
    """For a file of DAGs: none where a task is about to run, which has no use for its DAG's callbacks."""
    return () if get_parsing_context().dag_id else usable_notifiers(settings, log)


def usable_notifiers(settings: Settings, log: Any) -> tuple[BaseNotifier, ...]:
    """Those that can be had. What is wrong with the others is logged."""
    usable = []
    for path in _paths(settings):
        try:
            usable.append(_notifier(path))
        except UserError as error:
            log.error("%s", error)
    return tuple(usable)


def configured_notifiers(settings: Settings) -> tuple[BaseNotifier, ...]:
    """All of them, in the order of the setting. Raises `UserError` for one that cannot be had, with the reason."""
    return tuple(_notifier(path) for path in _paths(settings))


def _paths(settings: Settings) -> list[str]:
    return [path.strip() for path in settings.notifiers.split(",") if path.strip()]


def _notifier(path: str) -> BaseNotifier:
    found = _loaded(path)
    if not isinstance(found, BaseNotifier) and callable(found):
        try:
            found = found()
        except Exception as error:
            raise UserError(
                f"{NAME} names {path!r}, and calling it without arguments gave {type(error).__name__}: {error}; it "
                "must be a notifier of Airflow, or give one"
            ) from error
    if not isinstance(found, BaseNotifier):
        raise UserError(
            f"{NAME} names {path!r}, which is {_article(found)}; it must be a notifier of Airflow (an instance of "
            "airflow.sdk.BaseNotifier), or a function without arguments or class that gives one"
        )
    if type(found).notify is BaseNotifier.notify:
        raise UserError(
            f"{NAME} names {path!r}, and {type(found).__name__} has no method notify, only async_notify at most; "
            "callbacks of DAGs are called without an event loop: give it notify(context)"
        )
    return found


def _loaded(path: str) -> Any:
    module, colon, name = path.partition(":")
    if not (module and colon and name):
        raise UserError(f"{NAME} names {path!r}; it must be module:object, e.g. my_company.notify:slack")
    try:
        found: Any = import_module(module)
    except Exception as error:  # whatever the operator's module does when it is imported
        raise UserError(
            f"{NAME} names {path!r}, and importing {module} gave {type(error).__name__}: {error}; put it beside dags/, "
            "or install it where the services run, or unset the setting"
        ) from error
    for part in name.split("."):
        if not hasattr(found, part):
            raise UserError(f"{NAME} names {path!r}, and {module} has no {name!r}")
        found = getattr(found, part)
    return found


def _article(found: Any) -> str:
    kind = type(found).__name__
    return f"{'an' if kind[0].lower() in 'aeiou' else 'a'} {kind}"


def main() -> int:
    settings = Settings()
    try:
        notifiers = configured_notifiers(settings)
    except UserError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    sys.stdout.write(", ".join(type(notifier).__name__ for notifier in notifiers) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
