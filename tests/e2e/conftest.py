"""One platform for the whole session: starting it takes longer than most tests."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.platform import PATIENCE, Platform, project_with_dags, running


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.e2e)
            item.add_marker(pytest.mark.timeout(1200 * PATIENCE))


@pytest.fixture(scope="session")
def platform() -> Iterator[Platform]:
    """The services, up and healthy, with 2 nodes x 2 CPU slots. A test that stops something starts it again."""
    home = Path(tempfile.mkdtemp(prefix="elastic-e2e-"))
    project = project_with_dags(home / "project", Path(__file__).parent / "dags")
    with running(Platform(home, project=project)) as platform:
        yield platform


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Iterator[None]:
    """A failed test shows the end of every service's log."""
    report = yield
    platform = getattr(item, "funcargs", {}).get("platform")
    if report.failed and isinstance(platform, Platform):
        report.sections.append(("service logs", platform.tails(25)))
    return report
