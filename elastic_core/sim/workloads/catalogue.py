"""Workloads by name, each with the cluster that it is usually run on. Published ones are read from `ELASTIC_DATA`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

from elastic_core.sim.ground_truth.workload import Workload
from elastic_core.sim.traces.gavel_trace import gavel_workload
from elastic_core.sim.traces.philly import philly_workload
from elastic_core.sim.traces.published_traces import data_folder, pollux_workload, sia_workload
from elastic_core.sim.traces.tiresias_trace import tiresias_workload
from elastic_core.sim.workloads.generated_jobs import generated
from elastic_core.sim.workloads.lookup import look_up

DEFAULT = "generated"


@dataclass(frozen=True, slots=True)
class Entry:
    summary: str
    cluster: str  # name of a preset
    load: Callable[[int], Workload]  # the seed matters where something is drawn
    needs_data: bool = True
    round_seconds: float | None = None  # where deciding at every event would take hours


def _pollux(path: str, seed: int) -> Workload:  # noqa: ARG001 - nothing is drawn
    data = data_folder()
    return pollux_workload(data, data / "pollux-osdi21" / "workloads" / path)


def _sia(path: str, seed: int) -> Workload:  # noqa: ARG001 - nothing is drawn
    data = data_folder()
    return sia_workload(data, data / "sia-sosp23" / "workloads" / path)


def _philly(seed: int) -> Workload:
    return philly_workload(data_folder(), seed)


def _gavel(seed: int) -> Workload:
    return gavel_workload(data_folder(), seed)


def _tiresias(seed: int) -> Workload:  # noqa: ARG001 - nothing is drawn
    return tiresias_workload(data_folder())


def _entries() -> dict[str, Entry]:
    entries = {DEFAULT: Entry("60 jobs of five kinds, made up by the seed", "small-mixed", generated, needs_data=False)}
    for i in range(1, 5):
        for suffix, what in (
            ("", "160 jobs in 8 h"),
            ("-0.5", "80 jobs in 8 h"),
            ("-1.5", "240 jobs in 8 h"),
            ("-2.0", "320 jobs in 8 h"),
            ("-realistic", "160 jobs in 8 h, requests as users make them"),
        ):
            load = partial(_pollux, f"workloads{suffix}/workload-{i}.csv")
            entries[f"pollux-{i}{suffix}"] = Entry(f"Pollux (OSDI 2021), trace {i}: {what}", "64-t4", load)
    for i in range(1, 5):
        load = partial(_sia, f"philly/workload-{i}.csv")
        entries[f"sia-philly-{i}"] = Entry(
            f"Sia (SOSP 2023), Philly trace {i}: 160 jobs in 8 h", "sia-heterogeneous", load
        )
    for i in range(1, 3):
        load = partial(_sia, f"newtrace/workload-{i}.csv")
        entries[f"sia-newtrace-{i}"] = Entry(
            f"Sia (SOSP 2023), newTrace {i}: 960 jobs in 48 h", "sia-heterogeneous", load
        )
    for name in ("rate_10", "rate_50", "scale_2x", "scale_8x", "scale_32x"):
        load = partial(_sia, f"scale/{name}/workload-1.csv")
        times = name.removeprefix("scale_") if name.startswith("scale_") else ""
        cluster = f"sia-heterogeneous-{times}" if times else "sia-heterogeneous"
        entries[f"sia-{name.replace('_', '-')}"] = Entry(f"Sia (SOSP 2023), scale/{name}", cluster, load)
    entries["philly"] = Entry(
        "Philly (ATC 2019): 82,247 jobs in 108 days, models drawn by the seed", "philly-1024", _philly,
        round_seconds=600.0,
    )  # fmt: skip
    entries["gavel"] = Entry("Gavel (OSDI 2020): 200 jobs with its measured throughputs, drawn", "gavel-108", _gavel)
    entries["tiresias"] = Entry("Tiresias (NSDI 2019): its testbed's 60 jobs", "tiresias-64", _tiresias)
    return entries


ENTRIES = _entries()


def entry(name: str) -> Entry:
    """Raises `UserError` for a name that no workload has."""
    return look_up("workload", name, ENTRIES)


def first(loaded: Workload, num_jobs: int) -> Workload:
    """Only the first jobs to be submitted."""
    if num_jobs >= len(loaded.jobs):
        return loaded
    return replace(loaded, name=f"{loaded.name}, first {num_jobs} jobs", jobs=loaded.jobs[:num_jobs])
