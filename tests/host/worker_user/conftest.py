from __future__ import annotations

from collections.abc import Iterator

import pytest

from elastic_core.host.worker_user.identity import WorkerUser
from tests.security.worker_namespace import namespace


@pytest.fixture(scope="module")
def user() -> Iterator[WorkerUser]:
    """A dedicated user that can read Python and the project. Skips where there cannot be one."""
    with namespace() as found:
        yield found
