"""`python -m elastic_core.track.mlflow_server.serve_mlflow`: the embedded MLflow server, in this one process.

What `mlflow server` does, with the door, stores and artifacts of this package before MLflow's own. MLflow's variables
of the caller's environment do not count: they could open what is closed here. Ends on SIGTERM.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import MutableMapping
from functools import partial
from pathlib import Path
from threading import Event, Thread
from urllib.parse import urlsplit

import uvicorn

from elastic_core import logs
from elastic_core.host import mlflow_access
from elastic_core.settings import Settings
from elastic_core.track.mlflow_server.front_door import App, FrontDoor

log = logging.getLogger("elastic_core.track.mlflow_server")

# By which MLflow itself refuses other sources of model versions, before the store does.
SOURCES = r"^(mlflow-artifacts|models):/(?!/[^/])"
GRACE_SECONDS = 5  # for requests at hand when the server is to end


def prepare_environment(settings: Settings, environ: MutableMapping[str, str]) -> None:
    """MLflow's variables as this server has them, and no others."""
    for name in [name for name in environ if name.startswith(("MLFLOW_", "_MLFLOW_"))]:
        del environ[name]
    reached = settings.mlflow_host or settings.host
    page = urlsplit(settings.mlflow_page())
    hosts = [reached, *(("localhost", "127.0.0.1", "[::1]") if mlflow_access.is_loopback(reached) else ())]
    names = [*(f"{host}:{settings.mlflow_port}" for host in hosts), page.netloc]
    environ.update(
        {
            "MLFLOW_SERVER_ALLOWED_HOSTS": ",".join(dict.fromkeys(names)),
            "MLFLOW_CREATE_MODEL_VERSION_SOURCE_VALIDATION_REGEX": SOURCES,
            "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",
            "MLFLOW_ENABLE_AI_GATEWAY": "false",
            "MLFLOW_DISABLE_TELEMETRY": "true",
            "DO_NOT_TRACK": "true",
        }
    )


def make_artifact_folder(settings: Settings) -> Path:
    """Without links in its path, and closed to other users."""
    folder = mlflow_access.artifact_folder(settings)
    folder.mkdir(parents=True, exist_ok=True)
    os.chmod(folder, 0o700)
    return folder.resolve()


def build_app(settings: Settings, database_url: str) -> App:
    """MLflow's application behind its door, with its database migrated. For a process that does nothing else.

    Raises `UserError` for settings that are not safe. `uvicorn` must have been imported: MLflow takes it for the sign
    of a server.
    """
    mlflow_access.require_safe(settings)
    prepare_environment(settings, os.environ)
    root = make_artifact_folder(settings)

    from mlflow.server import constants

    os.environ |= {
        constants.BACKEND_STORE_URI_ENV_VAR: database_url,
        constants.REGISTRY_STORE_URI_ENV_VAR: database_url,
        constants.ARTIFACT_ROOT_ENV_VAR: "mlflow-artifacts:/",
        constants.ARTIFACTS_DESTINATION_ENV_VAR: str(root),
        constants.SERVE_ARTIFACTS_ENV_VAR: "true",
    }
    from mlflow.server.fastapi_app import app
    from mlflow.server.handlers import initialize_backend_stores

    from elastic_core.track.mlflow_server.artifact_folder import open_only
    from elastic_core.track.mlflow_server.guarded_stores import use_guarded_stores

    open_only(root)
    use_guarded_stores()
    initialize_backend_stores(database_url, database_url, "mlflow-artifacts:/")
    return FrontDoor(app, partial(mlflow_access.accounts, settings))


def start_collecting(settings: Settings, database_url: str) -> None:
    """What was deleted goes for good while this process serves. After `build_app`, whose stores it uses."""
    from mlflow.server.handlers import _get_tracking_store

    from elastic_core.track.mlflow_server.mlflow_gc import collect_for_ever

    store = _get_tracking_store(database_url, "mlflow-artifacts:/")
    root = mlflow_access.artifact_folder(settings).resolve()
    arguments = (store, root, settings.keep_days, Event())
    Thread(target=collect_for_ever, args=arguments, name="mlflow-gc", daemon=True).start()


def main() -> int:
    logs.configure("mlflow")
    settings = Settings()
    database_url = settings.secret_file("mlflow_db_url").read_text().strip()
    app = build_app(settings, database_url)
    start_collecting(settings, database_url)
    log.info("serving %s", settings.tracking_uri())
    uvicorn.run(
        app,
        host=settings.listens_on(settings.mlflow_host),
        port=settings.mlflow_port,
        ssl_certfile=settings.mlflow_certificate,
        ssl_keyfile=settings.mlflow_key,
        proxy_headers=False,
        server_header=False,
        timeout_graceful_shutdown=GRACE_SECONDS,
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
