"""What each exchange of gradients costs on networks of a stated speed, in seconds, bytes and loss, against torch's own.

    sudo .venv/bin/python -m benchmarks.communication [--quick | --cell "100 Mbit x 2" | --again]

The whole takes about an hour. What was measured of a cell is kept under benchmarks/out/communication with a digest of
the code that was measured, so that cells may be measured one at a time (`--cell`) and a run that was ended goes on;
cells of other code are measured anew, with `--again` all. Without `--cell` the report is made, of all cells.

Ranks are processes in network namespaces of their own (`namespaces`), 2 and 4 of them, on links of 100 Mbit, 1 Gbit,
and 1 Gbit with 10 ms each way, which a switch in user space delays (`delay_switch`: the kernel has no netem here). They
train an MLP of 25.2 million parameters, 32 samples a rank and step, one thread each (`measured_rank`). Rivals in the
same run are DDP's own all-reduce and its bf16 hook; PowerSGD is ours, since torch's needs its collectives ordered over
gloo. A step's seconds are the median of rank 0's, bytes those that its interface sent, headers and repeats included.

Losses do not depend on the network: they are compared on links without a limit, after the same samples.

`wire / compute` is how long the bytes of an exact sum take on the link, over the seconds of a step without exchange: of
2 W ranks on W cores the latter is twice as long as on machines of their own, and every speed-up so much smaller.

Bars: `bytegrad`, `onebit_adam` and `local_sgd` at an interval of 8 are as many times faster than DDP as was measured
for their arithmetic on such a machine, on links of 100 Mbit as it is, on the others within 20 %; bytes are those that
docs/design/communication.md names, and 5 %; `auto` is within 10 % of the best of all, and of the best that it may
choose. It runs twice: with `allow: lossy`, among exchanges of whole gradients, and with `allow: averaging`, among those
and averages of weights, of whose cost in loss no trial of seconds tells (docs/results/convergence.md). It is 1.95 times
as fast as DDP wherever any is.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from itertools import pairwise
from pathlib import Path

from benchmarks.common.kept_runs import code_of, fingerprint
from benchmarks.common.report import OUT, Report
from benchmarks.communication.measured_rank import (
    AUTO_AVERAGING,
    COMPUTE,
    DDP,
    DDP_BF16,
    INTERVAL,
    WIDTHS,
    Measured,
    Part,
)
from benchmarks.communication.namespaces import INTERFACE, Namespaces, Network, missing, unwinding
from elastic_core.comm.algorithms import NAMES, WEIGHTS_TOO, WHOLE_GRADIENTS
from elastic_core.domain import AUTO

SLOW, FAST, FAR, FREE = (
    Network("100 Mbit", 100e6),
    Network("1 Gbit", 1e9),
    Network("1 Gbit + 10 ms", 1e9, 0.010),
    Network("no limit", None),
)
PARAMETERS = sum(inputs * outputs + outputs for inputs, outputs in pairwise(WIDTHS))
MAY_CHOOSE = {AUTO: WHOLE_GRADIENTS, AUTO_AVERAGING: WEIGHTS_TOO}
METHODS = (COMPUTE, DDP, DDP_BF16, *NAMES, *MAY_CHOOSE)
LOSS_STEPS = 40
KEPT = OUT / "communication"
MEASURED = tuple(f"benchmarks.communication.{name}" for name in ("measured_rank", "namespaces", "delay_switch"))
CELL_SECONDS = 1800.0
# Speed-up over DDP by (network, ranks), and bytes a value that each rank sends, over (W - 1) / W.
ANCHORS = {
    "bytegrad": {(SLOW, 2): 3.29, (SLOW, 4): 2.81, (FAR, 2): 2.31, (FAR, 4): 2.20},
    "onebit_adam": {(SLOW, 2): 10.3, (SLOW, 4): 9.6, (FAR, 2): 2.86, (FAR, 4): 2.73},
    "local_sgd": {(SLOW, 2): 7.25, (SLOW, 4): 7.05, (FAR, 2): 4.51, (FAR, 4): 5.81},
}
BYTES_A_VALUE = {
    "allreduce": 8, "fp16": 4, "bf16": 4, "bytegrad": 2, "qadam": 2, "onebit_adam": 0.25, "local_sgd": 8 / INTERVAL,
}  # fmt: skip
WORTH_DDP = 1.95  # times DDP: to be reached by auto where any algorithm does
WITHIN = {SLOW: 1.0, FAST: 0.8, FAR: 0.8}  # part of an anchor that must be reached

Cell = tuple[Network, int]


def measure(network: Network, world: int, methods: Sequence[str], seconds: float, steps: int) -> dict[str, Measured]:
    """Every method on one network. RuntimeError with the ranks' words where one fails."""
    with Namespaces(world, network) as namespaces, tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        ranks: list[subprocess.Popen[bytes]] = []
        try:
            for rank in range(world):
                part = Part(
                    rank=rank, world=world, methods=tuple(methods), rendezvous=str(folder / "rendezvous"),
                    interface=INTERFACE, seconds=seconds, steps=steps,
                )  # fmt: skip
                command = [sys.executable, "-m", "benchmarks.communication.measured_rank", json.dumps(asdict(part))]
                with (folder / f"out{rank}").open("wb") as out, (folder / f"errors{rank}").open("wb") as errors:
                    ranks.append(namespaces.start(rank, command, stdout=out, stderr=errors))
            _wait(ranks)
        finally:
            for process in ranks:
                if process.poll() is None:
                    process.terminate()
                process.wait()
        if any(process.returncode for process in ranks):
            words = "\n".join(path.read_text(errors="replace")[-2000:] for path in sorted(folder.glob("errors*")))
            raise RuntimeError(f"ranks ended with {[process.returncode for process in ranks]}:\n{words}")
        lines = (folder / "out0").read_text().splitlines()
    return {(measured := Measured(**json.loads(line))).method: measured for line in lines}


def _wait(ranks: Sequence[subprocess.Popen[bytes]]) -> None:
    """Until all have ended, or one has failed: the others would wait for it."""
    deadline = time.monotonic() + CELL_SECONDS
    while any(process.poll() is None for process in ranks):
        if any(process.returncode for process in ranks):
            return
        if time.monotonic() > deadline:
            raise RuntimeError(f"the ranks have not ended after {CELL_SECONDS:g} s")
        time.sleep(0.05)


def show(report: Report, network: Network, world: int, by_method: Mapping[str, Measured]) -> None:
    compute, ddp = by_method[COMPUTE].step_seconds, by_method[DDP].step_seconds
    title = f"{network.name}, {world} ranks: {compute:.3g} s of compute"
    if network.bits_per_second is not None:
        wire = 8 * _expected_bytes(8, world) / network.bits_per_second
        title += f", {wire:.3g} s on the wire for an exact sum, wire / compute {wire / compute:.1f}"
    rows = [
        (
            _named(m),
            m.step_seconds,
            m.sent_bytes / 1e6,
            f"{ddp / m.step_seconds:.2f}",
            m.steps,
        )
        for m in by_method.values()
        if m.method != COMPUTE
    ]
    report.table(title, ("", "s a step", "MB a step", "times DDP", "steps"), rows)


def _named(measured: Measured) -> str:
    return f"{measured.method}: {measured.chosen}" if measured.chosen else measured.method


def show_losses(report: Report, world: int, by_method: Mapping[str, Measured]) -> None:
    exact = by_method[DDP].losses
    rows = [
        (m.method, *(m.losses[step] for step in _shown(len(exact))), f"{m.losses[-1] / exact[-1] - 1:+.2%}")
        for m in by_method.values()
    ]
    columns = ("", *(f"step {step + 1}" for step in _shown(len(exact))), "last, against DDP")
    report.table(f"Loss after the same samples, {world} ranks", columns, rows)


def _shown(steps: int) -> list[int]:
    return sorted({0, steps // 4, steps // 2, steps - 1})


def _expected_bytes(a_value: float, world: int) -> float:
    return a_value * PARAMETERS * (world - 1) / world


def hold(report: Report, cell: Cell, by_method: Mapping[str, Measured]) -> None:
    (network, world), ddp = cell, by_method[DDP].step_seconds
    where = f"{network.name} x {world}"
    for method, anchors in ANCHORS.items():
        if cell in anchors:
            least, got = WITHIN[network] * anchors[cell], ddp / by_method[method].step_seconds
            report.bar(f"{where}: {method} over DDP", want=f">= {least:.2f}", got=round(got, 2), ok=got >= least)
    for method, a_value in BYTES_A_VALUE.items():
        ratio = by_method[method].sent_bytes / _expected_bytes(a_value, world)
        report.bar(f"{where}: bytes of {method}, of those named", want="0.98 to 1.05", got=round(ratio, 3),
                   ok=0.98 <= ratio <= 1.05)  # fmt: skip
    for auto, may_choose in MAY_CHOOSE.items():
        for which, among in (("best", NAMES), ("best that it may choose", may_choose)):
            over = by_method[auto].step_seconds / min(by_method[name].step_seconds for name in among)
            report.bar(f"{where}: {auto} over the {which}, seconds", want="<= 1.1", got=round(over, 2), ok=over <= 1.1)
        if ddp / min(by_method[name].step_seconds for name in NAMES) >= WORTH_DDP:
            times = ddp / by_method[auto].step_seconds
            report.bar(f"{where}: {auto} over DDP", want=f">= {WORTH_DDP}", got=round(times, 2), ok=times >= WORTH_DDP)
    slower = by_method["allreduce"].step_seconds / ddp
    report.bar(f"{where}: our exact sum over DDP's, seconds", want="<= 1.1", got=round(slower, 2), ok=slower <= 1.1)


def kept(cell: Cell, again: bool) -> dict[str, Measured]:
    """What every method does in this cell: measured now, unless all were before, of the same code."""
    network, world = cell
    path = KEPT / f"{named(cell).replace(' ', '_')}.json"
    losses_only = network.bits_per_second is None
    methods = METHODS[1:] if losses_only else METHODS
    seconds, steps = (1e9, LOSS_STEPS) if losses_only else (25.0, 10)
    of = fingerprint({"network": asdict(network), "seconds": seconds, "steps": steps, "code": code_of(MEASURED)})
    by_method = {} if again else _read(path, of)
    if not by_method.keys() >= set(methods):
        by_method = measure(network, world, methods, seconds=seconds, steps=steps)
        path.parent.mkdir(parents=True, exist_ok=True)
        rows = [asdict(measured) for measured in by_method.values()]
        path.write_text(json.dumps({"of": of, "measured": rows}, indent=1))
    return by_method


def _read(path: Path, of: str) -> dict[str, Measured]:
    """What is kept there, if it is of this."""
    kept = json.loads(path.read_text()) if path.exists() else None
    if not isinstance(kept, dict) or kept["of"] != of:
        return {}
    rows = [Measured(**row) for row in kept["measured"]]
    return {measured.method: measured for measured in rows}


def named(cell: Cell) -> str:
    network, world = cell
    return f"{network.name} x {world}"


def quick() -> Report:
    report, cell = Report("communication", quick=True), (FAST, 2)
    by_method = measure(*cell, METHODS, seconds=2.0, steps=10)
    report.figure(named(cell), [asdict(measured) for measured in by_method.values()])
    show(report, *cell, by_method)
    hold(report, cell, by_method)
    return report


def whole(cells: Sequence[Cell], again: bool) -> Report:
    report = Report("communication", quick=False)
    no_delays = missing(delays=True)
    for cell in cells:
        network, world = cell
        if network.delay_seconds and no_delays is not None:
            report.bar(named(cell), want="measured", got=f"LEFT OUT: {no_delays}", ok=False)
            continue
        by_method = kept(cell, again)
        report.figure(named(cell), [asdict(measured) for measured in by_method.values()])
        if network.bits_per_second is None:
            show_losses(report, world, by_method)
        else:
            show(report, network, world, by_method)
            hold(report, cell, by_method)
    return report


def main() -> int:
    cells: list[Cell] = [(network, world) for network in (SLOW, FAST, FAR, FREE) for world in (2, 4)]
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="1 Gbit and 2 ranks only, three steps each")
    parser.add_argument("--cell", choices=[named(cell) for cell in cells], help="measure this one, and keep it")
    parser.add_argument("--again", action="store_true", help="measure although it is kept")
    arguments = parser.parse_args()
    why = missing()
    if why is not None:
        print(f"benchmarks.communication cannot run here: {why}.", file=sys.stderr)
        return 2
    with unwinding():
        if arguments.cell:
            kept(next(cell for cell in cells if named(cell) == arguments.cell), arguments.again)
            return 0
        return (quick() if arguments.quick else whole(cells, arguments.again)).finish()


if __name__ == "__main__":
    sys.exit(main())
