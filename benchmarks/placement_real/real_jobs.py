"""What is submitted, and the pool that it is for: slots, prices and times of `examples/placement/paced-ctr.json`.

Times of the jobs that are measured are `SIZE` times as long: what this machine itself does in a step is little beside
them then. Nothing but the scale of all throughputs comes of it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from elastic_core.placement.profile_files import PlacementProfile, read_profile
from elastic_core.spec import ClusterSpec, parse_cluster_spec
from examples.paced_ctr import PROFILES, profile_of_size

SIZE = 3.0
BATCH = 512  # that the profile's times are for
DATASET = 40 * BATCH
LARGE_ROWS = 20_000  # too many for the accelerator's memory
NODE_SLOTS = 4
MOST_SLOTS = 8  # of a job: so many processes has this machine to run at once
RECORDED = "benchmarks.placement_real.task:recorded"


def profile() -> PlacementProfile:
    return read_profile(PROFILES / "paced-ctr.json")


def profile_file(spec: Mapping[str, Any], folder: Path) -> Path | None:
    """The file that is submitted with the spec, written into the folder; None where the job is not placed."""
    if spec["placement"] == "none":
        return None
    path = folder / f"{spec['name']}.profile.json"
    path.write_text(json.dumps(profile_of_size(spec["params"].get("size", 1.0))))
    return path


def names() -> tuple[str, str]:
    """The processor's type, and the accelerator's."""
    by_kind = {kind.is_cpu: kind.name for kind in profile().types}
    return by_kind[True], by_kind[False]


def cluster() -> ClusterSpec:
    nodes = []
    for kind in profile().types:
        for first in range(0, kind.units, NODE_SLOTS):
            slots = min(NODE_SLOTS, kind.units - first)
            nodes.append({"name": f"{kind.name}-{first // NODE_SLOTS}", "type": kind.name, "slots": slots,
                          "price_per_slot_hour": kind.price})  # fmt: skip
    return parse_cluster_spec({"nodes": nodes})


def spec(name: str, steps: int, types: tuple[str, ...] = (), **params: Any) -> dict[str, Any]:
    """Of the click model, placed, with the slots that cost least. `types`: that it is kept to; () for any."""
    return {
        "name": name, "entry_point": "examples.paced_ctr:PacedCTR", "params": {"samples": DATASET, **params},
        "work": {"samples": steps * BATCH}, "batch": {"min": BATCH, "max": BATCH},
        "slots": {"min": 1, "max": MOST_SLOTS, "types": list(types)}, "segment": {"seconds": 600}, "audit": "full",
        "placement": "exact", "prefer": "cost",
    }  # fmt: skip


def recorded(name: str, steps: int, curve: Path) -> dict[str, Any]:
    """The same, which writes its losses into a file."""
    return {**spec(name, steps, curve=str(curve)), "entry_point": RECORDED}


def undisturbed(name: str, steps: int, curve: Path) -> dict[str, Any]:
    """The same in one process, whose layers last as long as they do."""
    cpu, _ = names()
    whole = {**spec(name, steps, curve=str(curve), size=0.0), "entry_point": RECORDED, "placement": "none"}
    return {**whole, "slots": {"min": 1, "max": 1, "types": [cpu]}}


def rival(name: str, steps: int, slots: int) -> dict[str, Any]:
    """A job of more weight that takes so many processors, whole on them."""
    cpu, _ = names()
    whole = {**spec(name, steps), "placement": "none", "prefer": "time", "priority": 50}
    return {**whole, "slots": {"min": slots, "max": slots, "types": [cpu]}}
