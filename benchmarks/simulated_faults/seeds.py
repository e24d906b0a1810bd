"""Many seeds, several at once: each worker process runs one after the other in a database of its own."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Sequence
from multiprocessing import get_context
from multiprocessing.queues import SimpleQueue

from benchmarks.simulated_faults.world import Outcome, run

_url = ""  # the database of this worker process


def outcomes(seeds: Iterable[int], urls: Sequence[str]) -> Iterator[Outcome]:
    """Of each seed, in order; as many at once as there are databases."""
    context = get_context("spawn")
    databases = context.SimpleQueue()
    for url in urls:
        databases.put(url)
    with context.Pool(len(urls), _begin, (databases,)) as workers:
        yield from workers.imap(_run, seeds)


def _begin(databases: SimpleQueue[str]) -> None:
    global _url
    _url = databases.get()
    be_silent()


def be_silent() -> None:
    logging.disable(logging.CRITICAL)  # faults on purpose; what matters is in the outcome


def _run(seed: int) -> Outcome:
    return run(seed, _url)
