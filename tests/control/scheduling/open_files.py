"""A process that has many files open, or can open no more."""

from __future__ import annotations

import os
import resource
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager


@contextmanager
def many_open_files(at_least: int = 1024) -> Iterator[None]:
    """As in an API server with a connection of each trainer: the next descriptors have numbers from `at_least` on."""
    allowed = resource.getrlimit(resource.RLIMIT_NOFILE)
    with ExitStack() as then:
        then.callback(resource.setrlimit, resource.RLIMIT_NOFILE, allowed)
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(4 * at_least, allowed[1]), allowed[1]))
        while (opened := os.open(os.devnull, os.O_RDONLY)) < at_least:
            then.callback(os.close, opened)
        then.callback(os.close, opened)
        yield


@contextmanager
def no_more_files() -> Iterator[None]:
    """The system gives no descriptor."""
    allowed = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, allowed[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, allowed)
