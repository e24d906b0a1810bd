"""What a change of layout moves, and what it does to the loss curve: Figures 14 and 16 of Tenplex (arXiv 2312.05181).

    .venv/bin/python -m benchmarks.reconfigure [--quick]

Figure 14: a transformer's weights and Adam's moments go from one (tensor, pipeline, data) layout to another, between
up to 16 processes, one a device, four devices on each of up to four hosts. THE HOSTS ARE EMULATED: all processes run on
this machine, and those of different hosts share no memory. Ours (`state.reshard.collective_load`) against one
process that takes in everything and hands it out (`state.reshard.tenplex_central`). Every new tensor is compared with
the original, bit for bit.

A link is a device's (everything that enters or leaves its memory) or a host's (everything between it and other
hosts). Its load is what it sends or takes in, whichever is more; the central way's two phases follow each other, so
that their loads add up. Bytes are those that arrived at the sockets, and copies between the devices of a host. Nothing
comes from the store here: the old memory is there. Time is from a common start to the last device's end, with the
making of the new memory and without the plan (in its own column: every rank computes it for itself); all of it on the
cores of one machine, whose links are memory copies.

Figure 16: the example transformer, reconfigured midway by the runtime (checkpoint, new processes, restore), up and
down, in data, pipeline and tensor sizes, against a run that stays in the layout it began in.

Bars: the busiest link carries at most a quarter of the central way's bytes, the sockets at most 1.02 times the bytes
planned; losses differ relatively by at most 1e-10 in fp64 and 1e-5 in the 50 steps after the change in fp32.
"""

from __future__ import annotations

import argparse
import math
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from benchmarks.common.changing import Change, Moves, Outcome, carry_out, load_of_links
from benchmarks.common.curves import Curve, Resize, largest_difference, trained
from benchmarks.common.report import Report
from benchmarks.reshard import whole_state
from elastic_core.domain import Layout, Slot
from elastic_core.state.layout.layout import AXES, PIPELINE, TENSOR, Mesh, Placement, Split, StateLayout, TensorMeta
from elastic_core.state.reshard.change_plan import holdings, plan_change
from elastic_core.state.reshard.tenplex_central import tenplex_central_plans

Sizes = tuple[int, int, int]  # tensor, pipeline, data

START: Sizes = (4, 2, 1)
TARGETS: dict[str, Sizes] = {"D": (4, 2, 2), "M": (8, 2, 1), "P": (4, 4, 1)}
SLOTS = tuple(Slot(f"host-{i // 4}", i % 4, "cpu") for i in range(16))
DEPTH, VOCABULARY, CONTEXT = 24, 8192, 256
CUT_DIMS = {"qkv": 0, "qkv_bias": 0, "out": 1, "up": 0, "up_bias": 0, "down": 1, "token": 0, "weight": 0}
RESIZES = [
    resize
    for axis, few, many in (
        ("D", Layout(data=2), Layout(data=4)),
        ("P", Layout(pipeline=2), Layout(pipeline=4)),
        ("T", Layout(tensor=2), Layout(tensor=4)),
    )
    for resize in (Resize(axis, few, many), Resize(axis, many, few))
]


def metas_of(width: int) -> dict[str, TensorMeta]:
    """Weights and Adam's moments of a transformer of 24 blocks, in float32."""
    block = {"qkv": (3 * width, width), "qkv_bias": (3 * width,), "out": (width, width), "up": (4 * width, width),
             "up_bias": (4 * width,), "down": (width, 4 * width), "norm_1": (width,), "norm_2": (width,)}  # fmt: skip
    shapes: dict[str, tuple[int, ...]] = {"embed.token": (VOCABULARY, width), "embed.position": (CONTEXT, width)}
    for layer in range(DEPTH):
        shapes.update({f"blocks.{layer}.{name}": shape for name, shape in block.items()})
    shapes.update({"head.norm": (width,), "head.weight": (VOCABULARY, width)})
    kinds = ("model/{}", "optim/{}/exp_avg", "optim/{}/exp_avg_sq")
    return {kind.format(name): TensorMeta("float32", shape) for name, shape in shapes.items() for kind in kinds}


def layout_of(metas: Mapping[str, TensorMeta], sizes: Sizes) -> StateLayout:
    """Matrices cut over the tensor axis as Megatron does, stages of equal depth, replicas over the data axis."""
    tensor, pipeline, data = sizes
    placements = {}
    for name in metas:
        unit, *inner = name.split("/")[1].split(".")
        stage = {"embed": 0, "head": pipeline - 1}.get(unit)
        stage = int(inner[0]) * pipeline // DEPTH if stage is None else stage
        cuts = (Split(TENSOR, CUT_DIMS[inner[-1]]),) if inner[-1] in CUT_DIMS else ()
        placements[name] = Placement(cuts, {PIPELINE: (stage,)})
    return StateLayout(Mesh(AXES, (pipeline, data, tensor)), placements, SLOTS[: tensor * pipeline * data])


def cases() -> Iterator[tuple[str, Sizes, Sizes]]:
    for name, sizes in TARGETS.items():
        yield f"{name}: {START} -> {sizes}", START, sizes
        yield f"{name} back: {sizes} -> {START}", sizes, START


def changes_of(
    metas: Mapping[str, TensorMeta], state: Any, before: Sizes, after: Sizes
) -> tuple[Change, Change, float]:
    """Ours, the central way to the same ranks on the same devices, and the seconds that our plan took."""
    old = layout_of(metas, before)
    started = time.perf_counter()
    held = holdings(old, metas)
    plan = plan_change(metas, held, layout_of(metas, after), candidates=SLOTS)
    seconds = time.perf_counter() - started
    central = tenplex_central_plans(metas, held, plan.target, old.slots[0])
    ours, theirs = (
        Change(metas=metas, state=state, old=old, target=plan.target, phases=phases) for phases in ((plan,), central)
    )
    return ours, theirs, seconds


@dataclass(frozen=True, slots=True)
class Loads:
    """Bytes over each link, phases added up."""

    by_link: dict[str, int]

    @staticmethod
    def of(phases: Sequence[Moves]) -> Loads:
        total: dict[str, int] = {}
        for moves in phases:
            for link, size in load_of_links(moves).items():
                total[link] = total.get(link, 0) + size
        return Loads(total)

    def busiest(self, kind: str = "") -> tuple[str, int]:
        """The link of a kind ("device", "host"; any by default) that carries most, and its bytes."""
        of_kind = {link: size for link, size in self.by_link.items() if link.startswith(kind)}
        return max(of_kind.items(), key=lambda link: link[1], default=("none", 0))


def ratio_over(central: float, ours: float) -> float:
    """How many times ours fits; infinite where ours moves nothing."""
    return central / ours if ours else math.inf


def json_ratio(ratio: float) -> float | str:
    """JSON knows no infinity."""
    return round(ratio, 2) if math.isfinite(ratio) else "ours moves nothing"


def compare(report: Report, width: int, rounds: int, folder: Path) -> None:
    """All cases of Figure 14 at one size of the model."""
    metas = metas_of(width)
    state = whole_state(folder / f"state-{width}", metas)
    for tensor in state.values():
        tensor.normal_()
    mib = sum(tensor.nbytes for tensor in state.values()) >> 20
    rows, raw, worst = [], [], 0.0
    for name, before, after in cases():
        ours, central, planning = changes_of(metas, state, before, after)
        outcomes: dict[str, list[Outcome]] = {"ours": [], "central": []}
        for _ in range(rounds):  # they take turns, so that a slow moment of the machine hits both
            outcomes["ours"].append(carry_out(ours))
            outcomes["central"].append(carry_out(central))
        loads = {way: Loads.of(of_way[0].moves) for way, of_way in outcomes.items()}
        seconds = {way: statistics.median(outcome.seconds for outcome in of_way) for way, of_way in outcomes.items()}
        (our_link, our_bytes), (their_link, their_bytes) = (loads[way].busiest() for way in ("ours", "central"))
        ratio = ratio_over(their_bytes, our_bytes)
        by_kind = [
            ratio_over(loads["central"].busiest(kind)[1], loads["ours"].busiest(kind)[1]) for kind in ("host", "device")
        ]
        rows.append(
            (name, f"{our_bytes / 2**20:.1f} ({our_link})", f"{their_bytes / 2**20:.1f} ({their_link})", ratio,
             *by_kind, seconds["ours"], seconds["central"], seconds["central"] / seconds["ours"], planning)
        )  # fmt: skip
        for way, change in (("ours", ours), ("central", central)):
            planned = sum(plan.moved.device for plan in change.phases)
            for outcome in outcomes[way]:
                worst = max(
                    worst, ratio_over(sum(sum(moves.values()) for moves in outcome.moves), planned) if planned else 0.0
                )
            raw.append(
                {"case": name, "way": way, "planned_bytes": planned, "link_bytes": loads[way].by_link,
                 "seconds": [outcome.seconds for outcome in outcomes[way]], "proven": change.phases[0].proven,
                 "cpu_seconds": [outcome.cpu_seconds for outcome in outcomes[way]]}
            )  # fmt: skip
        report.bar(
            f"{mib} MiB, {name}: bytes over the busiest link", want=">= 4 x", got=json_ratio(ratio), ok=ratio >= 4
        )
    report.bar(
        f"{mib} MiB: bytes at the sockets over those planned", want="<= 1.02", got=round(worst, 4), ok=worst <= 1.02
    )
    report.figure(f"changes_{mib}_mib", raw)
    report.table(
        f"{mib} MiB on emulated hosts of 4 devices, (tensor, pipeline, data)",
        ("case", "ours: busiest link, MiB", "central: busiest link, MiB", "central/ours", "hosts only", "devices only",
         "ours, s", "central, s", "central/ours, time", "plan, s"),
        rows,
    )  # fmt: skip


def follow(report: Report, resizes: Sequence[Resize], steps: int, folder: Path) -> None:
    """Figure 16: the change after half of the steps."""
    change = steps // 2
    rows, raw = [], {}
    for precision in ("fp64", "fp32"):
        undisturbed: dict[Layout, Curve] = {}
        for resize in resizes:
            if resize.before not in undisturbed:
                undisturbed[resize.before] = trained(folder / "alone", precision, [(resize.before, steps)])
            alone = undisturbed[resize.before]
            changed = trained(folder / "changed", precision, [(resize.before, change), (resize.after, steps - change)])
            before, whole = (largest_difference(changed, alone, 1, last) for last in (change, steps))
            near = largest_difference(changed, alone, change + 1, min(steps, change + 50))
            rows.append((f"{precision}, {resize}", before, near, whole))
            raw[f"{precision}, {resize}"] = {"changed": list(changed.values()), "undisturbed": list(alone.values())}
            what, limit = (whole, 1e-10) if precision == "fp64" else (near, 1e-5)
            where = "all steps" if precision == "fp64" else f"{min(50, steps - change)} steps after the change"
            report.bar(
                f"{precision}, {resize} at step {change}: largest relative difference over {where}",
                want=f"<= {limit:g}", got=f"{what:.2g}", ok=what <= limit and before == 0.0,
            )  # fmt: skip
    report.figure("curves_loss", raw)
    report.table(
        f"{steps} steps, the layout changed after {change}: largest relative difference of the loss",
        ("", "before the change", "50 steps after it", "whole run"),
        rows,
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="one small model, one round; one resize, 40 steps")
    parser.add_argument("--folder", default=None, help="where to write; a temporary folder by default")
    arguments = parser.parse_args()
    torch.set_num_threads(1)  # forked processes must find no threads
    quick = arguments.quick
    report = Report("reconfigure", quick=quick)
    with tempfile.TemporaryDirectory(dir=arguments.folder) as temporary:
        for width in (64,) if quick else (256, 512):
            compare(report, width, 1 if quick else 3, Path(temporary))
        follow(report, RESIZES[4:5] if quick else RESIZES, 40 if quick else 200, Path(temporary))
    return report.finish()


if __name__ == "__main__":
    sys.exit(main())
