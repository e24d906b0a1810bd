"""`python -m elastic_core.track.traces.trace_service`: tells the collector of ELASTIC_OTLP_TRACES what is over of jobs'
lives, for as long as it runs.

The collector or the ledger away: it waits and asks again, less and less often, and goes on where it was. Ends on
SIGTERM after the page at hand. Two of them tell the same spans twice.
"""

from __future__ import annotations

import logging
import signal
import sys
from threading import Event

from elastic_core import logs
from elastic_core.protocol.events import TRACES_READER
from elastic_core.settings import Settings
from elastic_core.track.follow import Follower, open_when_there, serve
from elastic_core.track.traces.trace_tracker import TraceTracker

log = logging.getLogger("elastic_core.track.traces.trace_service")  # by name: the module runs as __main__


def main() -> int:
    logs.configure("traces")
    settings, stop = Settings(), Event()
    if not settings.otlp_traces:
        log.info("ELASTIC_OTLP_TRACES is empty: there is no collector to tell")
        return 0
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    control = open_when_there(settings, stop)
    if control is not None:
        tracker = TraceTracker(settings.otlp_traces, control, control.feed)
        serve(Follower(control.feed, tracker, reader=TRACES_READER), stop)
        control.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
