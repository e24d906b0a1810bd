"""The notifiers that the setting `ELASTIC_NOTIFIERS` names: `module:object`, an instance or what makes one.

They are the operator's own code, found on the services' path, beside `dags/` or installed. `python -m` this module says
what they are, for `elastic doctor`.
"""

from __future__ import annotations

import sys
from importlib import import_module
from typing import Any

from airflow.sdk import BaseNotifier, get_parsing_context

from elastic_core.errors import UserError
from elastic_core.settings import Settings

NAME = "ELASTIC_NOTIFIERS"


def parsed_notifiers(settings: Settings) -> tuple[BaseNotifier, ...]:
    """For a DAG file: none where a task is about to run, which has no use for its DAG's callbacks."""
    return () if get_parsing_context().dag_id else configured_notifiers(settings)


def configured_notifiers(settings: Settings) -> tuple[BaseNotifier, ...]:
    """In the order of the setting. Raises `UserError` for one that cannot be had, with the reason."""
    paths = [path.strip() for path in settings.notifiers.split(",") if path.strip()]
    return tuple(_notifier(path) for path in paths)


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
