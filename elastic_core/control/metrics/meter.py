"""The ledger's metrics as a page for Prometheus: read when asked, and at most every few seconds.

A server of Prometheus, or whoever else asks often, costs the ledger no more than that. With several API servers each
reads for itself, and all tell the same.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector
from sqlalchemy import or_, select

from elastic_core.control.ledger import forecast_rows
from elastic_core.control.ledger.database import Ledger, Tx
from elastic_core.control.ledger.tables import JobRow, NodeRow
from elastic_core.control.ledger.views import job_statuses
from elastic_core.control.metrics import metric_families as families
from elastic_core.control.metrics.metric_families import FAMILIES, Family, Kind
from elastic_core.control.metrics.standing import Sample, queues, standing
from elastic_core.control.metrics.tallies import Key, Tallies
from elastic_core.domain import JobState
from elastic_core.protocol.outlook.at_risk import Risk, risks

KEEP_SECONDS = 5.0
FORECAST_SECONDS, FORECAST_JOBS = 60.0, 1000  # graded forecasts are read so often, of so many jobs
RISK_SECONDS = 30.0  # which jobs are at risk is looked up so often
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
RESIZE_KINDS = ("in_place", "restart", "retry")


class Meter:
    """Safe to use from many threads: one reads, the others wait for what it finds."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._lock = threading.Lock()
        self._tallies = Tallies()
        self._page: tuple[float, bytes] | None = None
        self._forecasts: tuple[float, list[Sample]] | None = None
        self._at_risk: tuple[float, list[Sample]] | None = None

    def page(self) -> bytes:
        """In Prometheus' text format (`CONTENT_TYPE`). Raises `InfrastructureError` where the ledger is away."""
        with self._lock:
            now = time.monotonic()
            if self._page is None or now - self._page[0] >= KEEP_SECONDS:
                self._page = now, self._read(now)
            return self._page[1]

    def _read(self, now: float) -> bytes:
        samples = self._ledger.read(lambda tx: [*standing(tx), *self._sums(tx)])
        if self._forecasts is None or now - self._forecasts[0] >= FORECAST_SECONDS:
            self._forecasts = now, self._ledger.read(_forecasts)
        if self._at_risk is None or now - self._at_risk[0] >= RISK_SECONDS:
            self._at_risk = now, self._ledger.read(_at_risk)
        samples += [*self._forecasts[1], *self._at_risk[1], (families.READ_SECONDS, (), time.monotonic() - now)]
        registry = CollectorRegistry(auto_describe=False)
        registry.register(_Told(samples))
        return generate_latest(registry)

    def _sums(self, tx: Tx) -> list[Sample]:
        sums = self._tallies.read(tx)
        nodes = {n.name: (n.type, n.price_per_slot_hour) for n in tx.session.scalars(select(NodeRow))}
        return list(_samples(sums, nodes, queues(tx)))


def _samples(
    sums: Mapping[Key, float], nodes: Mapping[str, tuple[str, float]], names: Sequence[str]
) -> Iterator[Sample]:
    """`nodes`: resource type and price of a slot hour by name; `names`: of queues."""
    held: dict[tuple[str, str], float] = {}
    cost, trained = dict.fromkeys(names, 0.0), dict.fromkeys(names, 0.0)
    for (name, *labels), amount in sums.items():
        if name == "held":
            queue, node = labels
            type_, price = nodes[node]
            held[queue, type_] = held.get((queue, type_), 0.0) + amount
            cost[queue] = cost.get(queue, 0.0) + amount * price / 3600
        elif name == "trained":
            trained[labels[0]] = amount
    yield from ((families.SLOT_SECONDS, labels, seconds) for labels, seconds in held.items())
    yield from ((families.COST, (queue,), amount) for queue, amount in cost.items())
    yield from ((families.TRAINED_SECONDS, (queue,), seconds) for queue, seconds in trained.items())
    yield from ((families.RESIZES, (kind,), sums.get(("resizes", kind), 0.0)) for kind in RESIZE_KINDS)
    yield families.CHECKPOINTS, (), sums.get(("checkpoints",), 0.0)
    yield families.CHECKPOINT_BYTES, (), sums.get(("bytes",), 0.0)
    for kind in RESIZE_KINDS:
        yield from _histogram(families.RESIZE_SECONDS, (kind,), sums, ("resize", kind), ("resize seconds", kind))
    yield from _histogram(families.CHECKPOINT_SECONDS, (), sums, ("checkpoint",), ("checkpoint seconds",))


def _histogram(
    family: Family, labels: tuple[str, ...], sums: Mapping[Key, float], bucket: Key, seconds: Key
) -> Iterator[Sample]:
    """Its samples: the number up to each bound, then that of all, then their sum."""
    number = 0.0
    for place in range(len(family.bounds) + 1):
        number += sums.get((*bucket, str(place)), 0.0)
        yield family, labels, number
    yield family, labels, sums.get(seconds, 0.0)


def _forecasts(tx: Tx) -> list[Sample]:
    samples: list[Sample] = []
    for of_stage in forecast_rows.forecast_report(tx, FORECAST_JOBS).stages:
        labels = (of_stage.quantity.value, f"{of_stage.stage:g}")
        if of_stage.median_error is not None:
            samples.append((families.FORECAST_ERROR, labels, of_stage.median_error))
        if of_stage.coverage is not None:
            samples.append((families.FORECAST_COVERAGE, labels, of_stage.coverage))
    return samples


def _at_risk(tx: Tx) -> list[Sample]:
    aims = or_(JobRow.spec["deadline"].astext.is_not(None), JobRow.spec["budget"].astext.is_not(None))
    jobs = job_statuses(tx, list(tx.session.scalars(select(JobRow).where(JobRow.state == JobState.ACTIVE, aims))))
    at_risk = [risk for job in jobs for risk in risks(job, tx.now)]
    return [(families.AT_RISK, (risk.value,), float(at_risk.count(risk))) for risk in Risk]


class _Told(Collector):
    def __init__(self, samples: Iterable[Sample]) -> None:
        self._samples: dict[Family, dict[tuple[str, ...], list[float]]] = {family: {} for family in FAMILIES}
        for family, labels, value in samples:
            self._samples[family].setdefault(labels, []).append(float(value))

    def collect(self) -> Iterator[Metric]:
        return (_metric(family, by_labels) for family, by_labels in self._samples.items())


def _metric(family: Family, by_labels: Mapping[tuple[str, ...], list[float]]) -> Metric:
    if family.kind is Kind.HISTOGRAM:
        histogram = HistogramMetricFamily(family.name, family.help, labels=family.labels)
        bounds = (*(f"{bound:g}" for bound in family.bounds), "+Inf")
        for labels, (*numbers, seconds) in by_labels.items():
            histogram.add_metric(labels, list(zip(bounds, numbers, strict=True)), seconds)
        return histogram
    made = CounterMetricFamily if family.kind is Kind.COUNTER else GaugeMetricFamily
    plain = made(family.name, family.help, labels=family.labels)
    for labels, (value,) in by_labels.items():
        plain.add_metric(labels, value)
    return plain
