"""The names of the metrics, with what they mean. A name or label, once told, stays: dashboards and rules have it.

Labels have few values: states, kinds, queues, resource types. None names a job, of which there is no bound.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Kind(StrEnum):
    GAUGE = "gauge"
    COUNTER = "counter"  # its samples end in `_total`
    HISTOGRAM = "histogram"


@dataclass(frozen=True, slots=True)
class Family:
    name: str
    kind: Kind
    help: str
    labels: tuple[str, ...] = ()
    bounds: tuple[float, ...] = ()  # of a histogram's buckets, seconds

    def samples(self) -> tuple[str, ...]:
        """The names under which a server of Prometheus has it."""
        if self.kind is Kind.HISTOGRAM:
            return tuple(f"{self.name}_{part}" for part in ("bucket", "count", "sum"))
        return (f"{self.name}_total" if self.kind is Kind.COUNTER else self.name,)


RESIZE_BOUNDS = (0.5, 1.0, 2.5, 5.0, 10.0, 20.0, 40.0, 80.0, 160.0, 320.0)
CHECKPOINT_BOUNDS = (0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0)

JOBS = Family("elastic_jobs", Kind.GAUGE, "Active jobs: created, waiting, paused, starting, training.",
              ("queue", "state"))  # fmt: skip
LONGEST_WAIT = Family("elastic_queue_longest_wait_seconds", Kind.GAUGE,
                      "How long the job that waits longest has waited for slots.", ("queue",))  # fmt: skip
ENDED = Family("elastic_jobs_ended", Kind.GAUGE, "Jobs that are over; one that is revived is not.", ("state",))
AT_RISK = Family("elastic_jobs_at_risk", Kind.GAUGE,
                 "Active jobs that are expected to miss their deadline, or to exceed their budget.",
                 ("kind",))  # fmt: skip
SLOTS = Family("elastic_slots", Kind.GAUGE, "Slots: held, idle, set_aside, away (of nodes that are not there).",
               ("type", "state"))  # fmt: skip
DECISIONS = Family("elastic_decisions", Kind.COUNTER, "Decisions ever made.")
DECISION_SECONDS = Family("elastic_decision_seconds", Kind.GAUGE,
                          "Time of a decision, over those of the last 15 minutes, 500 at most.",
                          ("quantile",))  # fmt: skip
DECISION_FAILURES = Family("elastic_decision_failures", Kind.GAUGE,
                           "Of these decisions, those that the policy could not make.")  # fmt: skip
RESIZES = Family("elastic_resizes", Kind.COUNTER,
                 "Changes of a job's processes or slots after its first start: in_place, restart (new processes on "
                 "other slots), retry (new processes on the slots before: a crash, a pause).", ("kind",))  # fmt: skip
RESIZE_SECONDS = Family("elastic_resize_seconds", Kind.HISTOGRAM,
                        "Seconds without a training step that a resize took, of those that came to a step.",
                        ("kind",), RESIZE_BOUNDS)  # fmt: skip
SLOT_SECONDS = Family("elastic_slot_seconds", Kind.COUNTER, "Time that slots were held.", ("queue", "type"))
TRAINED_SECONDS = Family("elastic_slot_trained_seconds", Kind.COUNTER,
                         "Of the time that slots were held, from the first step of each lease to its last commit.",
                         ("queue",))  # fmt: skip
THROUGHPUT = Family("elastic_throughput_samples_per_second", Kind.GAUGE,
                    "Samples a second of the jobs that train, by their last reports.", ("queue",))  # fmt: skip
GOODPUT = Family("elastic_goodput_samples_per_second", Kind.GAUGE,
                 "The same, a sample weighted by its worth for convergence at its batch, where that is measured.",
                 ("queue",))  # fmt: skip
CHECKPOINTS = Family("elastic_checkpoints", Kind.COUNTER, "Checkpoints that were committed.")
CHECKPOINT_SECONDS = Family("elastic_checkpoint_seconds", Kind.HISTOGRAM,
                            "Time from the state's capture until its checkpoint was in the store.", (),
                            CHECKPOINT_BOUNDS)  # fmt: skip
CHECKPOINT_BYTES = Family("elastic_checkpoint_bytes", Kind.COUNTER, "Size of the checkpoints that were committed.")
HEARTBEAT_AGE = Family("elastic_heartbeat_age_seconds", Kind.GAUGE,
                       "Time since the last heartbeat, of the job that has been silent longest; 0 without "
                       "processes.")  # fmt: skip
LEASE_SECONDS = Family("elastic_lease_seconds", Kind.GAUGE, "Life of a lease without a heartbeat (a setting).")
FORECAST_ERROR = Family("elastic_forecast_error_ratio", Kind.GAUGE,
                        "Median of the absolute relative errors of forecasts, of the last 1,000 jobs that ended; "
                        "stage: part of the work that was done.", ("quantity", "stage"))  # fmt: skip
FORECAST_COVERAGE = Family("elastic_forecast_coverage_ratio", Kind.GAUGE,
                           "Part of their 80 % intervals that held what came.", ("quantity", "stage"))  # fmt: skip
COST = Family("elastic_cost", Kind.COUNTER,
              "Slot hours so far at the prices of now, in the currency of the nodes' prices.", ("queue",))  # fmt: skip
COST_RATE = Family("elastic_cost_per_hour", Kind.GAUGE, "What the slots that are held cost an hour.", ("queue",))
READ_SECONDS = Family("elastic_metrics_read_seconds", Kind.GAUGE, "How long reading these from the ledger took.")

FAMILIES = (
    JOBS, LONGEST_WAIT, ENDED, AT_RISK, SLOTS, DECISIONS, DECISION_SECONDS, DECISION_FAILURES, RESIZES,
    RESIZE_SECONDS, SLOT_SECONDS, TRAINED_SECONDS, THROUGHPUT, GOODPUT, CHECKPOINTS, CHECKPOINT_SECONDS,
    CHECKPOINT_BYTES, HEARTBEAT_AGE, LEASE_SECONDS, FORECAST_ERROR, FORECAST_COVERAGE, COST, COST_RATE, READ_SECONDS,
)  # fmt: skip
