"""MLflow's stores, which take no location but their own artifacts': whatever route, version or field it came by.

Every route of MLflow ends in these stores (REST, `ajax-api` and GraphQL alike), so this is the one place to say it. All
refusals are answers 400.
"""

# mypy: allow-untyped-calls
# MLflow's classes, which these extend, are typed in part only.

from __future__ import annotations

from typing import Any
from urllib.parse import unquote, urlsplit

from mlflow.entities import ViewType
from mlflow.exceptions import MlflowException
from mlflow.store.entities.paged_list import PagedList
from mlflow.store.model_registry.sqlalchemy_store import SqlAlchemyStore as SqlRegistryStore
from mlflow.store.tracking.sqlalchemy_store import SqlAlchemyStore as SqlTrackingStore

SCHEME = "mlflow-artifacts"


def is_own(location: str) -> bool:
    """Whether it is a path below the server's artifacts: no other scheme, host, query, or way up."""
    try:
        parts = urlsplit(location)
    except ValueError:
        return False
    path = unquote(unquote(parts.path))
    plain = not parts.netloc and not parts.query and not parts.fragment and "\\" not in path and "\0" not in path
    return location.startswith(f"{SCHEME}:/") and plain and ".." not in path.split("/")


def require_own(location: str | None, what: str) -> None:
    if location and not is_own(location):
        raise MlflowException.invalid_parameter_value(
            f"{what} is {location!r}. This server keeps artifacts in a folder of its own and takes only locations that "
            f"begin with '{SCHEME}:/' and stay there; leave it out, and one is chosen."
        )


class GuardedTracking(SqlTrackingStore):
    """Experiments, and what inherits their locations: runs and logged models.

    Where a trace has its spans is a tag, which is not judged here: `artifact_folder` does not open what it must not.
    """

    def create_experiment(self, name: str, artifact_location: str | None = None, tags: Any = None) -> str:
        require_own(artifact_location, "artifact_location")
        return str(super().create_experiment(name, artifact_location, tags))

    def restore_experiment(self, experiment_id: str) -> None:
        self._require_own_experiment(experiment_id)
        super().restore_experiment(experiment_id)

    def create_run(self, experiment_id: str, *args: Any, **kwargs: Any) -> Any:
        self._require_own_experiment(experiment_id)
        return super().create_run(experiment_id, *args, **kwargs)

    def restore_run(self, run_id: str) -> None:
        require_own(self.get_run(run_id).info.artifact_uri, f"the artifact location of run {run_id}")
        super().restore_run(run_id)

    def create_logged_model(self, experiment_id: str, *args: Any, **kwargs: Any) -> Any:
        self._require_own_experiment(experiment_id)
        return super().create_logged_model(experiment_id, *args, **kwargs)

    def _require_own_experiment(self, experiment_id: str) -> None:
        """Refuses one that came into the database under another server."""
        with self.ManagedSessionMaker() as session:
            experiment = self._get_experiment(session, experiment_id, ViewType.ALL)
            require_own(experiment.artifact_location, f"the artifact location of experiment {experiment_id}")


class GuardedRegistry(SqlRegistryStore):
    """Model versions. A webhook that is in the database from before is not delivered."""

    def create_model_version(self, name: str, source: str, *args: Any, **kwargs: Any) -> Any:
        if not source.startswith("models:/"):  # a model that this server has, by its own checked location
            require_own(source or "nothing", "source")
        return super().create_model_version(name, source, *args, **kwargs)

    def list_webhooks_by_event(self, *_: Any, **__: Any) -> PagedList[Any]:
        return PagedList([], None)


def use_guarded_stores() -> None:
    """From now on the handlers of this process build these, for any database. To be called before the first request."""
    from mlflow.server import handlers
    from mlflow.store.db.db_types import DATABASE_ENGINES

    for scheme in DATABASE_ENGINES:
        handlers._tracking_store_registry.register(scheme, _tracking)
        handlers._model_registry_store_registry.register(scheme, _registry)


def _tracking(store_uri: str, artifact_uri: str) -> GuardedTracking:
    return GuardedTracking(store_uri, artifact_uri)


def _registry(store_uri: str) -> GuardedRegistry:
    return GuardedRegistry(store_uri)
