"""Runs and checkpoint models in MLflow, found by their tags before they are created.

MLflow gives its own ids and cannot create "unless it exists", so a tag with our name for the thing is what makes
each of these safe to repeat after a crash. Assumes one follower at a time (`track.tracker_service` holds a lock), and
that HTTP requests are not repeated below us: a creation whose answer was lost must be looked up before it is tried
again.
"""

from __future__ import annotations

import logging
import tempfile
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Generic, TypeVar

import requests
import urllib3
from mlflow import MlflowClient
from mlflow.entities import LifecycleStage, LoggedModelOutput, LoggedModelStatus, Metric, ViewType
from mlflow.exceptions import MlflowException
from mlflow.models.utils import get_external_mlflow_model_spec
from mlflow.utils.mlflow_tags import MLFLOW_MODEL_IS_EXTERNAL, MLFLOW_PARENT_RUN_ID
from mlflow.utils.validation import MAX_METRICS_PER_BATCH, MAX_PARAMS_TAGS_PER_BATCH

from elastic_core.errors import InfrastructureError, UserError
from elastic_core.protocol.events import SWEPT
from elastic_core.protocol.records import CheckpointRecord
from elastic_core.track import facts
from elastic_core.track.champions.registry_api import REFUSALS
from elastic_core.track.tracker import TookTooLong

log = logging.getLogger(__name__)
T = TypeVar("T")

RETIRED = "elastic.retired"  # tag of a checkpoint's model: why nobody can use it any more
# Has MLflow's UI show the pages for training (runs and their models), not those for language-model applications.
EXPERIMENT_TAGS = {"mlflow.experimentKind": "custom_model_development"}
# Names of one run, since a job's code may make up new ones without end and MLflow reads all that a run has whenever it
# is looked for: of metrics five kinds (its own, checkpoint/, seconds/, bytes/, final/) of as many as one message has.
MOST_METRICS = 5_000
MOST_TAGS = 1_000
_LEFT_OUT, _ASKED_AT = "elastic.left_out", "elastic.asked_at"


class Refused(UserError):
    """MLflow answered, and will never take this: trying again cannot help."""


@contextmanager
def talking_to_mlflow(what: str) -> Iterator[None]:
    try:
        yield
    except MlflowException as error:
        if error.error_code in REFUSALS:
            raise Refused(f"MLflow refused to {what}: {error}") from error
        if _was_silent(error):
            raise TookTooLong(f"MLflow could not {what} in time: {error}. It is tried again.") from error
        raise InfrastructureError(f"MLflow could not {what}: {error}. It is tried again.") from error
    except requests.RequestException as error:
        raise InfrastructureError(f"MLflow could not be reached to {what}: {error}. It is tried again.") from error


def _was_silent(error: BaseException | None) -> bool:
    """Whether the server was reached, and the answer did not come in time."""
    while error is not None:
        if isinstance(error, (requests.ReadTimeout, urllib3.exceptions.ReadTimeoutError)):
            return True
        error = error.__cause__ or error.__context__
    return False


class Recent(Generic[T]):
    """The most recently used values, at most `size` of them."""

    def __init__(self, size: int = 4096) -> None:
        self._values: OrderedDict[Any, T] = OrderedDict()
        self._size = size

    def get(self, name: Any, make: Callable[[], T]) -> T:
        if name not in self._values:
            self._values[name] = make()
            if len(self._values) > self._size:
                self._values.popitem(last=False)
        self._values.move_to_end(name)
        return self._values[name]

    def clear(self) -> None:
        self._values.clear()


@dataclass(frozen=True, slots=True)
class Run:
    run_id: str
    experiment_id: str
    metrics: set[str] = field(default_factory=set, compare=False)  # names that it has
    tags: set[str] = field(default_factory=set, compare=False)


def _takes(names: set[str], name: str, most: int) -> bool:
    """Whether a run with these names takes a value under this one. It has the name then."""
    if name not in names and len(names) >= most:
        return False
    names.add(name)
    return True


class Runs:
    """`proxied_only`: the server is the embedded one, so all artifacts have to go through it. MLflow's client writes to
    any other location by itself, on this machine, and somebody else may have chosen that before the server was closed.
    """

    def __init__(self, client: MlflowClient, proxied_only: bool) -> None:
        self.client = client
        self._proxied_only = proxied_only
        self._experiments: Recent[str] = Recent(256)

    def forget(self) -> None:
        self._experiments.clear()

    def experiment(self, name: str) -> str:
        def make() -> str:
            with talking_to_mlflow(f"open experiment {name}"):
                experiment = self.client.get_experiment_by_name(name)
                if experiment is None:
                    return str(self.client.create_experiment(name, tags=EXPERIMENT_TAGS))
            self.check_location(experiment.artifact_location, f"experiment {name}")
            return str(experiment.experiment_id)

        return self._experiments.get(name, make)

    def check_location(self, location: str, whose: str) -> None:
        """Raises `Refused` for artifacts that the client would write elsewhere than through the server."""
        if self._proxied_only and not location.startswith("mlflow-artifacts:/"):
            raise Refused(
                f"The artifacts of {whose} would be written to {location}, past the MLflow server. Delete it in MLflow "
                "for good (`mlflow gc`), or rename it: a new one is made."
            )

    def find(self, experiment_id: str, tags: Mapping[str, str]) -> Run | None:
        """The run with these tags, also when a user has deleted it: it must not come back."""
        found = self._search(experiment_id, tags)
        return found and Run(found.info.run_id, experiment_id, set(found.data.metrics), set(found.data.tags))

    def _search(self, experiment_id: str, tags: Mapping[str, str]) -> Any | None:
        condition = " AND ".join(f"tags.`{name}` = '{value}'" for name, value in tags.items())
        with talking_to_mlflow(f"look for the run with {condition}"):
            runs = self.client.search_runs(
                [experiment_id], condition, ViewType.ALL, max_results=1, order_by=["attributes.start_time ASC"]
            )
        return runs[0] if runs else None

    def open(
        self,
        experiment_id: str,
        *,
        name: str,
        identity: Mapping[str, str],
        started_at: float,
        params: Mapping[str, Any],
        tags: Mapping[str, Any],
        parent: Run | None = None,
    ) -> Run:
        """Find the run by `identity` (tags that no other run has), or create it; then complete its parameters."""
        run = self.find(experiment_id, identity)
        if run is None:
            first = dict(identity) if parent is None else {**identity, MLFLOW_PARENT_RUN_ID: parent.run_id}
            with talking_to_mlflow(f"create run {name}"):
                created = self.client.create_run(experiment_id, facts.milliseconds(started_at), first, name)
            run = Run(created.info.run_id, experiment_id, tags=set(first))
        all_params, all_tags = facts.params(params), facts.tags(tags)
        with talking_to_mlflow(f"describe run {name}"):
            for i in range(0, max(len(all_params), len(all_tags)), MAX_PARAMS_TAGS_PER_BATCH // 2):
                chunk = slice(i, i + MAX_PARAMS_TAGS_PER_BATCH // 2)
                self.client.log_batch(run.run_id, params=all_params[chunk], tags=all_tags[chunk], synchronous=True)
        run.tags.update(tag.key for tag in all_tags)
        return run

    def tag(self, run: Run, tags: Mapping[str, Any]) -> None:
        with talking_to_mlflow(f"tag run {run.run_id}"):
            self.client.log_batch(run.run_id, tags=facts.tags(tags), synchronous=True)

    def tag_told(self, run: Run, tags: Mapping[str, Any]) -> None:
        """As `tag`, under names that a job's code has a say in: at most so many of one run."""
        all_tags = facts.tags(tags)
        shown = [tag for tag in all_tags if _takes(run.tags, tag.key, MOST_TAGS)]
        with talking_to_mlflow(f"tag run {run.run_id}"):
            for i in range(0, len(shown), MAX_PARAMS_TAGS_PER_BATCH):
                self.client.log_batch(run.run_id, tags=shown[i : i + MAX_PARAMS_TAGS_PER_BATCH], synchronous=True)
        if len(shown) < len(all_tags):
            self._say_left_out(run)

    def log(self, run: Run, metrics: Sequence[Metric]) -> None:
        """Under at most so many names of one run; that others are left out is said in a tag."""
        shown = [metric for metric in metrics if _takes(run.metrics, metric.key, MOST_METRICS)]
        with talking_to_mlflow(f"log {len(shown)} points to run {run.run_id}"):
            for i in range(0, len(shown), MAX_METRICS_PER_BATCH):
                self.client.log_batch(run.run_id, shown[i : i + MAX_METRICS_PER_BATCH], synchronous=True)
        if len(shown) < len(metrics):
            self._say_left_out(run)

    def _say_left_out(self, run: Run) -> None:
        if _LEFT_OUT in run.tags:
            return
        self.tag(run, {_LEFT_OUT: f"names beyond {MOST_METRICS} of metrics and {MOST_TAGS} of tags are not shown"})
        run.tags.add(_LEFT_OUT)
        log.warning("run %s has too many names of metrics or tags: others are left out", run.run_id)

    def resume(self, run: Run) -> None:
        with talking_to_mlflow(f"mark run {run.run_id} as running"):
            self.client.update_run(run.run_id, status="RUNNING")

    def end(self, run: Run, status: str, at: float) -> None:
        with talking_to_mlflow(f"end run {run.run_id}"):
            self.client.set_terminated(run.run_id, status, facts.milliseconds(at))

    def end_running(self, experiment_id: str, tags: Mapping[str, str], status: str, at: float) -> None:
        """End the run with these tags, where there is one that nobody has ended or deleted."""
        run = self._search(experiment_id, tags)
        if run is not None and run.info.status == "RUNNING" and run.info.lifecycle_stage == LifecycleStage.ACTIVE:
            self.end(Run(run.info.run_id, experiment_id), status, at)

    def ask(self, experiment_id: str) -> None:
        """Something small, and written, of one experiment. Raises as all that MLflow is asked for."""
        with talking_to_mlflow(f"tag experiment {experiment_id}"):
            self.client.set_experiment_tag(experiment_id, _ASKED_AT, str(round(time.time())))

    def checkpoint_model(self, run: Run, name: str, checkpoint: CheckpointRecord, tags: Mapping[str, str]) -> None:
        """The LoggedModel of a committed checkpoint: metadata only, its bytes stay in the checkpoint store."""
        with talking_to_mlflow(f"show checkpoint {checkpoint.uri}"):
            model = self.find_checkpoint(run.experiment_id, checkpoint.uri)
            if model is None:
                model = self.client.create_logged_model(
                    run.experiment_id,
                    name=name,
                    source_run_id=run.run_id,
                    tags={**tags, "elastic.uri": checkpoint.uri, MLFLOW_MODEL_IS_EXTERNAL: "true"},
                    params=facts.checkpoint_params(checkpoint),
                    model_type="checkpoint",
                )
            if model.status != LoggedModelStatus.READY:
                self._complete(run, model, checkpoint)

    def _complete(self, run: Run, model: Any, checkpoint: CheckpointRecord) -> None:
        values = facts.prefixed("checkpoint", checkpoint.metrics)
        self.log(run, list(facts.points(values, checkpoint.committed_at, checkpoint.step, model.model_id)))
        self._log_output(run, LoggedModelOutput(model.model_id, checkpoint.step))
        self.check_location(model.artifact_location, f"model {model.model_id}")
        with tempfile.TemporaryDirectory() as folder:
            # as mlflow.create_external_model does, which knows the process-wide server only
            get_external_mlflow_model_spec(model).save(str(Path(folder) / "MLmodel"))
            self.client.log_model_artifacts(model.model_id, folder)
        self.client.finalize_logged_model(model.model_id, LoggedModelStatus.READY)

    def _log_output(self, run: Run, output: LoggedModelOutput) -> None:
        """The run is asked for what it has, which is all of its metrics too, only where MLflow refuses: it has this
        output already then, or does not answer."""
        try:
            self.client.log_outputs(run.run_id, [output])
        except MlflowException:
            outputs = self.client.get_run(run.run_id).outputs
            if output.model_id not in {known.model_id for known in (outputs.model_outputs if outputs else ())}:
                raise

    def find_checkpoint(self, experiment_id: str, uri: str) -> Any | None:
        models = self.client.search_logged_models([experiment_id], f"tags.`elastic.uri` = '{uri}'", max_results=1)
        return models[0] if models else None

    def retire_checkpoint(self, experiment_id: str, uri: str, why: str) -> None:
        """Say why; one whose bytes are gone is deleted: the embedded server takes it for good (`mlflow_gc`), one of the
        user's own with its next `mlflow gc`. Nothing where it is gone already."""
        with talking_to_mlflow(f"show checkpoint {uri} as retired"):
            model = self.find_checkpoint(experiment_id, uri)
            if model is None:
                return
            self.client.set_logged_model_tags(model.model_id, {RETIRED: why})
            if why == SWEPT:
                self.client.delete_logged_model(model.model_id)

    def tag_checkpoint(self, experiment_id: str, uri: str, tags: Mapping[str, str]) -> None:
        """One that is not shown, or was deleted by a user, is passed over."""
        with talking_to_mlflow(f"tag checkpoint {uri}"):
            model = self.find_checkpoint(experiment_id, uri)
            if model is not None:
                self.client.set_logged_model_tags(model.model_id, {facts.key(name): v for name, v in tags.items()})
