"""The platform's app below Airflow's API server: the page at once, the control API as soon as the ledger answers.

An exception while a plugin's app starts would stop the whole API server. So nothing here can fail at start-up: until
the control plane is built, its routes answer 503 with the reason, and building is tried again.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Sequence
from typing import TYPE_CHECKING, Any

import structlog
from fastapi import Depends, FastAPI, Request
from fastapi.responses import JSONResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from elastic_airflow.names import JOB_DAG, RECONCILE_DAG
from elastic_airflow.page.page_files import page_router
from elastic_core.protocol.callers import Caller, Way
from elastic_core.settings import Settings

if TYPE_CHECKING:
    from airflow.api_fastapi.auth.managers.base_auth_manager import ResourceMethod

    from elastic_airflow.airflow_users import AirflowUsers
    from elastic_core.control.plane import LedgerControl
    from elastic_core.protocol.callers import Users
    from elastic_core.protocol.tokens import KeyFile

Dependency = Callable[..., Any]
log = structlog.get_logger(__name__)

MAX_WAIT_SECONDS = 15.0  # between two tries to build the control plane
PAUSE_SECONDS = 60.0  # for which reconciliation stays paused at most


class DeferredApp:
    """Passes requests on to the app once it is built; says why not until then."""

    def __init__(self, build: Callable[[], FastAPI]) -> None:
        self._build = build
        self._app: ASGIApp | None = None
        self.problem = "the control plane is starting"

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self._app is not None:
            await self._app(scope, receive, send)
        elif scope["type"] == "http":
            answer = JSONResponse(
                {"code": "infrastructure", "message": self.problem}, status_code=503, headers={"Retry-After": "2"}
            )
            await answer(scope, receive, send)

    async def serve(self, stop: asyncio.Event) -> None:
        """Build the app, however long that takes, and keep its lifespan open until `stop`."""
        wait = 0.5
        while not stop.is_set():
            try:
                app = await asyncio.to_thread(self._build)
                async with app.router.lifespan_context(app):
                    self._app = app
                    log.info("the control plane is ready")
                    await stop.wait()
                    return
            except Exception as error:  # noqa: BLE001 (whatever it is must not stop Airflow's API server; it is shown)
                self._app = None
                self.problem = f"the control plane does not start: {type(error).__name__}: {error}"
                log.warning(self.problem, retry_in_seconds=wait)
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(stop.wait(), wait)
                wait = min(2 * wait, MAX_WAIT_SECONDS)


async def keep_reconciling(stop: asyncio.Event) -> None:
    """Until `stop`: whoever may pause a DAG does not stop what makes up for crashes. `elastic down` does."""
    while not stop.is_set():
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(stop.wait(), PAUSE_SECONDS)
            return
        try:
            if await asyncio.to_thread(_take_back_pause):
                log.warning(f"{RECONCILE_DAG} was paused, and goes on: nothing else makes up for crashes")
        except Exception as error:  # noqa: BLE001 (Airflow's database is away: the next look may find it)
            log.warning(f"it is not known whether {RECONCILE_DAG} is paused: {type(error).__name__}: {error}")


def _take_back_pause() -> bool:
    from elastic_airflow.airflow_runs import take_back_pause

    return take_back_pause()


def mount_app(
    build: Callable[[], FastAPI], reads: Callable[..., Any], beside: Sequence[Callable[[asyncio.Event], Any]] = ()
) -> FastAPI:
    """The app to mount. `reads` is the dependency that a user must pass to see the page. `beside`: what else runs as
    long as the app, until the event that it is given."""
    control_app = DeferredApp(build)

    @contextlib.asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        stop = asyncio.Event()
        running = [asyncio.create_task(work(stop)) for work in (control_app.serve, *beside)]
        yield
        stop.set()
        await asyncio.gather(*running)

    app = FastAPI(title="Elastic training platform", openapi_url=None, docs_url=None, redoc_url=None, lifespan=lifespan)
    app.include_router(page_router(), prefix="/page", dependencies=[Depends(reads)])
    app.mount("/", control_app)
    return app


def plugin_app() -> FastAPI:
    return mount_app(build_control_app, user_may("GET"), [keep_reconciling])


def user_may(method: ResourceMethod) -> Callable[..., Any]:
    """Airflow's own rule: who may see (GET) or start (POST) runs of `elastic_job` may do so with jobs here."""
    from airflow.api_fastapi.auth.managers.models.resource_details import DagAccessEntity
    from airflow.api_fastapi.core_api.security import requires_access_dag

    return requires_access_dag(method=method, access_entity=DagAccessEntity.RUN, param_dag_id=JOB_DAG)


def acting_user(users: AirflowUsers) -> Callable[..., Caller]:
    """The dependency that a user must pass to act, and that says who it is."""
    from airflow.api_fastapi.core_api.security import get_user

    def acting(
        request: Request,
        user: Any = Depends(get_user),  # noqa: B008 - in the annotation FastAPI could not read it: its name is local
        _: None = Depends(user_may("POST")),
    ) -> Caller:
        return users.logged_in(user, Way.REST if "authorization" in request.headers else Way.PAGE)

    return acting


def control_app(
    control: LedgerControl, settings: Settings, *, service_secret: bytes | KeyFile, reads: Dependency,
    writes: Dependency, users: Users | None = None, metrics_token: bytes | KeyFile | None = None,
) -> FastAPI:  # fmt: skip
    """The control API with all of its routes, those of the page and of models included; arguments as `create_app`'s."""
    from elastic_airflow.page.models_api import models_router
    from elastic_airflow.page.page_api import log_router, ui_router
    from elastic_core.control.rpc.api_v1 import PREFIX
    from elastic_core.control.rpc.http_api import create_app

    app: FastAPI = create_app(
        control, service_secret=service_secret, user_reads=reads, user_writes=writes, users=users,
        metrics_token=metrics_token,
    )  # fmt: skip
    app.include_router(ui_router(control, settings), prefix="/ui", dependencies=[Depends(reads)])
    app.include_router(log_router(control, settings), prefix=PREFIX, dependencies=[Depends(reads)])
    app.include_router(models_router(control, settings, reads=reads, writes=writes))
    return app


def build_control_app() -> FastAPI:
    """The control API over the ledger of the settings. Raises whatever keeps it from starting.

    All that is loaded by then, Airflow included, is never looked through for garbage again: with a thousand jobs each
    decision had the interpreter do so twice, and every request wait for a fifth of a second.
    """
    from elastic_airflow.airflow_runs import AirflowJobRuns
    from elastic_airflow.airflow_users import AirflowUsers
    from elastic_core.control.plane import open_control
    from elastic_core.host.garbage import keep_what_is_loaded
    from elastic_core.protocol.tokens import KeyFile
    from elastic_core.track.champions.registry_champions import RegistryChampions

    settings = Settings()
    control = open_control(settings, runs=AirflowJobRuns(), champions=RegistryChampions(settings))
    users = AirflowUsers(settings)
    app = control_app(
        control, settings, service_secret=KeyFile(settings.secret_file("control")), reads=user_may("GET"),
        writes=acting_user(users), users=users, metrics_token=KeyFile(settings.secret_file("metrics")),
    )  # fmt: skip
    keep_what_is_loaded()
    return app
