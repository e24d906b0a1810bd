"""The page in a real browser, over a real ledger: chromium where there is one. Whoever asks is let in, as ann."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from fastapi import FastAPI, HTTPException
from playwright.sync_api import Browser, Page, expect, sync_playwright

from elastic_airflow.api_server import control_app
from elastic_airflow.page.page_files import page_router
from elastic_core.control.plane import LedgerControl
from elastic_core.protocol.callers import Caller, Way
from elastic_core.settings import Settings
from tests.builders import CONTROL_SECRET, FakeClock, FakeJobRuns, a_control
from tests.control.serving import served
from tests.required import lacks

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
SECONDS = 60  # a busy machine


@pytest.fixture(scope="package")
def browser() -> Iterator[Browser]:
    """No wider than its folder: while it is open, an event loop runs in this thread, and `asyncio.run` refuses to."""
    if CHROMIUM is None:
        lacks("chromium", "chromium is not installed: nothing here shows the page")
    expect.set_options(timeout=SECONDS * 1000)
    with sync_playwright() as playwright:
        launched = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"], timeout=SECONDS * 1000)
        yield launched
        launched.close()


@pytest.fixture
def shown(pool_url: str, tmp_path: Path) -> Iterator[LedgerControl]:
    """What the page shows."""
    with closing(a_control(pool_url, tmp_path, FakeClock(), FakeJobRuns())) as plane:
        yield plane


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return Settings(home=tmp_path)


ANN = Caller(name="ann", way=Way.PAGE, unrestricted=True)


def may_not() -> Caller:
    raise HTTPException(403, "Forbidden")


def mounted(shown: LedgerControl, settings: Settings, writes: Callable[[], Caller]) -> FastAPI:
    """The page, its own routes and the REST API as the API server mounts them."""
    inner = control_app(shown, settings, service_secret=CONTROL_SECRET, reads=lambda: None, writes=writes)
    inner.include_router(page_router(), prefix="/page")
    app = FastAPI()
    app.mount("/elastic", inner)
    return app


@pytest.fixture
def address(shown: LedgerControl, settings: Settings, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Of the page. No DAG is paused."""
    monkeypatch.setattr("elastic_airflow.page.page_api.paused_dags", list)
    monkeypatch.setattr("elastic_airflow.page.page_api.seconds_without_reconciliation", lambda: 0.0)
    with served(mounted(shown, settings, lambda: ANN)) as url:
        yield f"{url}/elastic/page/"


@pytest.fixture
def viewers_address(shown: LedgerControl, settings: Settings) -> Iterator[str]:
    """Of the page, for who may look and not act."""
    with served(mounted(shown, settings, may_not)) as url:
        yield f"{url}/elastic/page/"


@pytest.fixture(params=["light", pytest.param("dark", marks=pytest.mark.nightly)])  # they behave the same
def page(browser: Browser, request: pytest.FixtureRequest) -> Iterator[Page]:
    """Fails with what the page's scripts complain of."""
    context = browser.new_context(color_scheme=request.param, viewport={"width": 1280, "height": 900})
    opened = context.new_page()
    opened.set_default_timeout(SECONDS * 1000)
    problems: list[Any] = []
    opened.on("pageerror", lambda error: problems.append(error))
    yield opened
    context.close()
    assert not problems
