"""`python -m elastic_core.track.tracker_service`: keeps MLflow up to date with the ledger, for as long as it runs.

MLflow or the ledger away: it waits and asks again, less and less often, and goes on where it was. Ends on SIGTERM
after the page at hand. One at a time: a second one says so and ends.
"""

from __future__ import annotations

import fcntl
import logging
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Event

from elastic_core import logs
from elastic_core.errors import Conflict
from elastic_core.protocol.events import Feed
from elastic_core.settings import Settings
from elastic_core.track.follow import Follower, open_when_there, serve
from elastic_core.track.mlflow_client import open_client
from elastic_core.track.mlflow_tracker import MlflowTracker
from elastic_core.track.tracker import Jobs, NoTracker, Tracker

log = logging.getLogger("elastic_core.track.tracker_service")  # by name: the module runs as __main__


def open_tracker(settings: Settings, jobs: Jobs, feed: Feed) -> Tracker:
    """The tracker that the settings name.

    MLflow's client then sends each request once in this process and gives up after 20 s, because a creation that
    is repeated below us would be made twice (see `track.mlflow_runs`).
    """
    if settings.mlflow_uri == "none":
        return NoTracker()
    os.environ["MLFLOW_HTTP_REQUEST_MAX_RETRIES"] = "0"
    os.environ.setdefault("MLFLOW_HTTP_REQUEST_TIMEOUT", "20")
    os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
    os.environ.setdefault("MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT", "true")  # a line for every run that ends
    return MlflowTracker(open_client(settings), jobs, feed, settings)


@contextmanager
def only_follower(settings: Settings) -> Iterator[None]:
    """Held while following. Raises `Conflict` when another process of this machine holds it."""
    path = settings.home.absolute() / "tracker.lock"
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise Conflict(
                f"Another process holds {path} and follows the ledger already; `elastic tracker status` shows how far."
            ) from None
        yield


def main() -> int:
    logs.configure("tracker")
    settings, stop = Settings(), Event()
    if settings.mlflow_uri == "none":
        log.info("ELASTIC_MLFLOW_URI is 'none': nothing to keep up to date")
        return 0
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    with only_follower(settings):
        control = open_when_there(settings, stop)
        if control is not None:
            serve(Follower(control.feed, open_tracker(settings, control, control.feed)), stop)
            control.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
