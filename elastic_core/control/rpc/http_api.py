"""The control plane over HTTP, mounted in Airflow's API server. Four kinds of caller, and no route without one:

- `POST /service/<method>`: operators, triggers, the CLI; signed with the service secret (HMAC). Where the request says
  for whom it acts, it has no more rights than they.
- `POST /trainer/<method>`: the processes of one segment, and the agent that watches them (`rpc.trainer_api`).
- `GET /metrics`: a server of Prometheus; a bearer token of its own.
- `/ui/...` and `/api/v1/...`: people, behind Airflow's own login; the plugin brings what checks their roles.

Handlers are synchronous, so they run in the server's thread pool and a slow decision never blocks its loop; what
trainers ask has threads of its own, and so has what services ask.
`/api/v1` has an OpenAPI description (`rpc.api_v1`); of the others the contract is `elastic_core.protocol`.
"""

# No `from __future__ import annotations`: FastAPI reads the annotations of handlers, which name local dependencies.
import time
from collections.abc import Callable
from functools import partial
from typing import Annotated, Any

from anyio import CapacityLimiter, to_thread
from fastapi import APIRouter, Depends, FastAPI, Request, Response
from starlette.types import Scope

from elastic_core.control.plane import LedgerControl
from elastic_core.control.rpc import contract_calls, peoples_share
from elastic_core.control.rpc.api_v1 import PREFIX, include_api, json_answer
from elastic_core.control.rpc.contract_calls import answer, find_method, path_below, read_body
from elastic_core.control.rpc.job_details_api import job_details_router
from elastic_core.control.rpc.metrics_page import metrics_router
from elastic_core.control.rpc.pool_api import node_writes_router, timeline_router
from elastic_core.control.rpc.questions_api import questions_router
from elastic_core.control.rpc.refusals import add_refusals
from elastic_core.control.rpc.trainer_api import trainer_router
from elastic_core.control.rpc.whatif import what_if
from elastic_core.control.teams.permissions import check_method
from elastic_core.errors import NotFound
from elastic_core.protocol import calls
from elastic_core.protocol.callers import NoDirectory, OnBehalf, Users, caller_of
from elastic_core.protocol.tokens import CALLER_HEADER, KeyFile, ServiceSigner

MAX_SPEC_BODY = 128 * 2**10  # a job spec may have 64 KiB, a sweep twice that, and stand in an object
MAX_REPORT_BODY = 16 * 2**20  # what a host says of its process groups
MLFLOW_THREADS, ASKS_MLFLOW = 3, frozenset({"promote", "roll_back_model"})  # which may not answer for long
SERVICE_THREADS = 16  # with a connection to the ledger each (`database.MOST_CONNECTIONS`)
REPORTS = frozenset({"reconcile", "swept", "record_results", "set_cluster", "submit", "process_group_gone"})
Dependency = Callable[..., Any]


def create_app(
    control: LedgerControl, *, service_secret: bytes | KeyFile, user_reads: Dependency, user_writes: Dependency,
    users: Users | None = None, metrics_token: bytes | KeyFile | None = None,
) -> FastAPI:  # fmt: skip
    """`user_reads` and `user_writes` are FastAPI dependencies that raise unless the person may look, or act.

    `user_writes` gives the `Caller`; None stands for one with all rights. `users`: who is not logged in here.
    `metrics_token` opens the metrics and nothing else.
    """
    app = FastAPI(
        title="elastic control", openapi_url=None, docs_url=None, redoc_url=None, dependencies=[Depends(_plain_path)]
    )
    add_refusals(app)
    app.add_middleware(peoples_share.PeoplesShare, prefixes=("/ui/", PREFIX))
    app.include_router(_service_routes(control, ServiceSigner(service_secret), users or NoDirectory()))
    app.include_router(trainer_router(control))
    app.include_router(_ui_routes(control, user_reads))
    app.include_router(metrics_router(control.meter, metrics_token))
    include_api(app, control, reads=user_reads, writes=user_writes, body=_body)
    app.include_router(timeline_router(control, user_reads))
    app.include_router(node_writes_router(control, user_writes, _body))
    app.include_router(job_details_router(control, user_reads))
    app.include_router(questions_router(control, user_reads, _body))
    return app


async def _plain_path(request: Request) -> None:
    address = str(request.url)  # the path decoded, the query as it was sent
    if "\0" in address or "%00" in address:
        raise NotFound("the address holds the character NUL, which no name has")


async def _body(request: Request) -> bytes:
    """What a person sends."""
    return await read_body(request, MAX_SPEC_BODY, peoples_share.BODY_SECONDS)


def _service_routes(control: LedgerControl, signer: ServiceSigner, users: Users) -> APIRouter:
    async def signed(name: str, request: Request) -> bytes:
        method, target = request.method, _target(request.scope)
        signer.check_headers(method, target, request.headers, time.time())
        most = MAX_REPORT_BODY if name in REPORTS else MAX_SPEC_BODY
        body = await read_body(request, most, contract_calls.BODY_SECONDS)
        signer.check(method, target, body, request.headers, time.time())
        return body

    router, threads = APIRouter(), CapacityLimiter(SERVICE_THREADS - MLFLOW_THREADS)
    asks_mlflow = CapacityLimiter(MLFLOW_THREADS)

    @router.post("/service/{name}")
    async def service(name: str, request: Request, body: Annotated[bytes, Depends(signed)]) -> Response:
        on_behalf = request.headers.get(CALLER_HEADER)
        limiter = asks_mlflow if name in ASKS_MLFLOW else threads
        return await to_thread.run_sync(partial(serve, name, on_behalf, body), limiter=limiter)

    def serve(name: str, on_behalf: str | None, body: bytes) -> Response:
        caller = caller_of(OnBehalf.of_header(on_behalf), users) if on_behalf else None
        if caller is not None:
            check_method(caller, name)
        method = find_method(calls.service_methods(), name)
        return answer(method, control.acting(caller), method.decode_arguments(body))

    return router


def _target(scope: Scope) -> str:
    """Path and query below this app, wherever it is mounted: what the client signed."""
    path = path_below(scope)
    query = scope.get("query_string", b"").decode("latin-1")
    return f"{path}?{query}" if query else path


def _ui_routes(control: LedgerControl, user_reads: Dependency) -> APIRouter:
    """What the page asks and the REST API does not have. All else it asks there."""
    router = APIRouter(prefix="/ui")

    @router.get("/whatif", dependencies=[Depends(user_reads)])
    def whatif(policy: str, jobs: int = 100) -> Response:
        """What another policy would have done with the last jobs. Within bounds: see `control.rpc.whatif`."""
        return json_answer(what_if(control, policy, jobs))

    return router
