"""How the platform's facts look in MLflow: names and values of metrics, parameters and tags. Pure functions.

Curves of a run have plain names (`loss`, `samples`, ...). What a checkpoint was measured at is `checkpoint/<name>`,
what a registered model was `served/<name>`, what the finished job was `final/<name>`: the same name at the same step
with another time would be a second point of the curve.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import quote

from mlflow.entities import Metric, Param, RunTag
from mlflow.utils.validation import MAX_PARAM_VAL_LENGTH, MAX_TAG_VAL_LENGTH

from elastic_core.domain import Allocation, Layout, Observation, PlacedFigures, from_json, to_json
from elastic_core.domain.placed import cost_of_a_million
from elastic_core.protocol.exchange_words import figures_by_name
from elastic_core.protocol.process_groups import code_of
from elastic_core.protocol.records import DATA_SHA256, CheckpointRecord, JobStatus
from elastic_core.settings import Settings
from elastic_core.spec import JobSpec
from elastic_core.spec.inputs.sweeps import swept_values, words_of

_MILLION = "cost_per_million_samples"


def milliseconds(at: float) -> int:
    """MLflow's timestamps; a pure function of the ledger's, so that a repeated point is the same point."""
    return round(at * 1000)


def key(name: str) -> str:
    """A name that MLflow takes: other characters than its own become `_`."""
    return re.sub(r"[^\w\-. /:]", "_", name, flags=re.ASCII)[:250]


def curve_points(observation: Observation, placed: PlacedFigures | None = None) -> Iterator[Metric]:
    """The points of one observation, at the job's global step. `placed`: what its grant predicted of its stages."""
    values = {
        **observation.metrics,
        "loss": observation.loss,
        "learning_rate": observation.learning_rate,
        "samples": observation.samples,
        "epoch": observation.epoch,
        "samples_per_second": observation.samples_per_second,
        "global_batch": observation.global_batch,
        "slots": observation.num_slots,
        "memory_bytes": observation.memory_bytes,
    }
    if observation.step_seconds > 0:
        values |= {"step_seconds": observation.step_seconds, "sync_seconds": observation.sync_seconds}
    if observation.progress is not None and observation.gain is not None:
        values |= {"progress": observation.progress, "gain": observation.gain}
    if observation.grad_sqr and observation.grad_var is not None:
        values["noise_scale"] = observation.grad_var / observation.grad_sqr
    if observation.choice is not None:
        values |= figures_by_name(observation.choice)
    if placed is not None and observation.samples_per_second > 0:
        values[_MILLION] = cost_of_a_million(placed.price_per_hour, observation.samples_per_second)
    return points(values, observation.at, observation.step)


def points(values: Mapping[str, float], at: float, step: int, model_id: str | None = None) -> Iterator[Metric]:
    for name, value in values.items():
        yield Metric(key(name), float(value), milliseconds(at), step, model_id=model_id)


def prefixed(prefix: str, values: Mapping[str, float]) -> dict[str, float]:
    return {f"{prefix}/{name}": value for name, value in values.items()}


def params(values: Mapping[str, Any]) -> list[Param]:
    return [Param(key(name), text(value)[:MAX_PARAM_VAL_LENGTH]) for name, value in values.items()]


def tags(values: Mapping[str, Any]) -> list[RunTag]:
    return [RunTag(key(name), text(value)[:MAX_TAG_VAL_LENGTH]) for name, value in values.items()]


def text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def experiment_name(spec: JobSpec) -> str:
    """Jobs of one name share an experiment: their runs and checkpoints are what can be compared. So do those of a
    sweep, with jobs that were submitted alone under the name that the sweep's have without their suffix."""
    return f"elastic/{spec.group.name if spec.group is not None else spec.name}"


def group_tags(spec: JobSpec) -> dict[str, str]:
    """By which the runs of a sweep are found, and told apart in a list; none of a job alone."""
    if spec.group is None:
        return {}
    swept = words_of(swept_values(spec))
    return {"elastic.group": spec.group.id, "elastic.group_index": str(spec.group.index), "elastic.swept": swept}


def flat(prefix: str, value: Any) -> dict[str, Any]:
    """Nested mappings as dotted names; `None` is left out."""
    if isinstance(value, Mapping):
        return {name: leaf for k, inner in value.items() for name, leaf in flat(f"{prefix}.{k}", inner).items()}
    return {} if value is None else {prefix.lstrip("."): value}


def spec_params(spec: JobSpec) -> dict[str, Any]:
    """What a sweep has set is there also where it is null, or a whole object."""
    return {**flat("", spec.model_dump(mode="json", exclude={"name", "group"})), **swept_values(spec)}


def layout_text(layout: Layout) -> str:
    shards = " sharded" if layout.sharded else ""
    servers = f" servers={layout.servers}" if layout.servers else ""
    return f"data={layout.data} tensor={layout.tensor} pipeline={layout.pipeline}{shards}{servers}"


def allocation_params(allocation: Allocation) -> dict[str, Any]:
    return {
        "slots": allocation.num_slots,
        "nodes": allocation.num_nodes,
        "types": " ".join(f"{count}x{type}" for type, count in sorted(allocation.counts().items())),
        "placement": " ".join(f"{slot.node}:{slot.index}" for slot in allocation.slots),
        "global_batch": allocation.global_batch,
        "layout": layout_text(allocation.layout),
        "comm": allocation.comm,
        **({"stages": "; ".join(map(str, allocation.stages))} if allocation.stages else {}),
    }


def placed_figures(grant: Mapping[str, Any]) -> PlacedFigures | None:
    """What a grant predicted of its stages; None where it has none."""
    figures = grant.get("placed")
    return None if figures is None else from_json(PlacedFigures, figures)


def placed_params(figures: PlacedFigures | None) -> dict[str, Any]:
    """What was predicted of a placed segment's stages, as its grant has it."""
    if figures is None:
        return {}
    cost = cost_of_a_million(figures.price_per_hour, figures.samples_per_second)
    return flat("predicted", {**to_json(figures), _MILLION: cost})


def checkpoint_params(checkpoint: CheckpointRecord) -> dict[str, str]:
    return {
        "step": str(checkpoint.step),
        "samples": str(checkpoint.samples),
        "lineage": str(checkpoint.lineage),
        "epoch": str(checkpoint.epoch),
        "segment": checkpoint.segment_id,
        "layout": layout_text(checkpoint.layout),
        "size_bytes": str(checkpoint.size_bytes),
        "uri": checkpoint.uri,
        "manifest_sha256": checkpoint.manifest_sha256,
        "final": str(checkpoint.final).lower(),
    }


def version_tags(job: JobStatus, checkpoint: CheckpointRecord, metrics: Mapping[str, float]) -> dict[str, str]:
    """What a registered version was made of. Without code or data where the ledger knows of none."""
    made_of = {"elastic.code_sha256": code_of(job.results).sha256, "elastic.data_sha256": job.results.get(DATA_SHA256)}
    return {
        "elastic.job_id": job.job_id,
        "elastic.step": str(checkpoint.step),
        "elastic.segments": str(int(checkpoint.segment_id.rpartition("_")[2]) + 1),
        "elastic.checkpoint_uri": checkpoint.uri,
        "elastic.metrics": json.dumps(dict(metrics)),
        **{name: value for name, value in made_of.items() if value},
    }


def run_url(settings: Settings, dag_id: str, run_id: str) -> str:
    """A DAG run on Airflow's page."""
    return f"{settings.airflow_page()}/dags/{quote(dag_id)}/runs/{quote(run_id)}"


def page_url(settings: Settings, job_id: str) -> str:
    """The job's page in Airflow's UI."""
    return f"{settings.airflow_page()}/plugin/elastic-job?job={quote(job_id)}"
