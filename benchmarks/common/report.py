"""What every benchmark writes: a table, one JSON file under benchmarks/out, a summary line, an exit code.

    report = Report("boundary", quick=args.quick)
    report.figure("commit_seconds", [0.11, 0.12, ...])          # every raw figure
    report.bar("median commit", want="< 1 s", got=0.12, ok=True)  # what must hold
    sys.exit(report.finish())

The file holds the date, the command, the machine, the versions, the tables as printed, every raw figure and
`"bars": [{"bar", "want", "got", "ok"}]`. `python -m benchmarks.common.results NAME` makes the page docs/results/NAME.md
of it.
"""

from __future__ import annotations

import json
import os
import platform
import statistics
import sys
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

OUT = Path(__file__).parents[1] / "out"
PACKAGES = ("apache-airflow", "mlflow", "torch", "scikit-learn", "scipy", "numpy", "sqlalchemy")


def machine() -> dict[str, Any]:
    """What the figures were measured on."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return {
        "cpu": _cpu_model(),
        "cores": os.cpu_count(),
        "memory_gib": round(memory / 2**30, 1),
        "system": platform.platform(),
        "python": platform.python_version(),
    }


def versions() -> dict[str, str]:
    installed = {}
    for package in PACKAGES:
        try:
            installed[package] = version(package)
        except PackageNotFoundError:
            installed[package] = "not installed"
    return installed


def command() -> str:
    """How this process was started; of ELASTIC_DATA whether it was set, not to which folder of this machine."""
    program = sys.modules["__main__"].__spec__
    module = program.name.removesuffix(".__main__") if program else Path(sys.argv[0]).name
    data = ["ELASTIC_DATA=..."] if os.environ.get("ELASTIC_DATA") else []
    return " ".join([*data, "python", "-m", module, *sys.argv[1:]])


class Report:
    """Collects the figures and bars of one benchmark run."""

    def __init__(self, name: str, *, quick: bool) -> None:
        self.name = name
        self.quick = quick
        self.figures: dict[str, Any] = {}
        self.bars: list[dict[str, Any]] = []
        self.tables: list[dict[str, Any]] = []
        self._console = Console()
        self._load = os.getloadavg()[0]  # what else ran: before the benchmark itself counts
        self._started = time.monotonic()

    def figure(self, name: str, raw: Any) -> None:
        """Keep a raw figure (or a list of them) under a name that carries its unit."""
        self.figures[name] = raw

    def bar(self, bar: str, *, want: str, got: Any, ok: bool) -> None:
        self.bars.append({"bar": bar, "want": want, "got": got, "ok": bool(ok)})

    def table(self, title: str, columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
        """Print a table and keep it, its cells as printed."""
        table = Table(title=title)
        cells = [[f"{cell:.4g}" if isinstance(cell, float) else str(cell) for cell in row] for row in rows]
        for i, column in enumerate(columns):
            table.add_column(column, justify="left" if i == 0 else "right")
        for row in cells:
            table.add_row(*row)
        self._console.print(table)
        self.tables.append({"title": title, "columns": list(columns), "rows": cells})

    def finish(self) -> int:
        """Write the JSON, print the bars and the summary line last; the process's exit code."""
        OUT.mkdir(exist_ok=True)
        path = OUT / f"{self.name}.json"
        content = {
            "benchmark": self.name,
            "about": _about(),
            "date": datetime.now(UTC).date().isoformat(),
            "command": command(),
            "quick": self.quick,
            "machine": machine() | {"load_at_start": round(self._load, 1)},
            "versions": versions(),
            "seconds": round(time.monotonic() - self._started, 3),
            "bars": self.bars,
            "tables": self.tables,
            "figures": self.figures,
        }
        path.write_text(json.dumps(content, indent=1, default=str))
        for bar in self.bars:
            print(f"{'ok  ' if bar['ok'] else 'MISS'} {bar['bar']}: want {bar['want']}, got {bar['got']}")
        missed = sum(not bar["ok"] for bar in self.bars)
        print(f"{self.name}: {len(self.bars) - missed} of {len(self.bars)} bars hold, written to {path}")
        return 1 if missed else 0


def spread(raw: Sequence[float]) -> dict[str, float]:
    """Median, quartiles and extremes of raw figures."""
    ordered = sorted(raw)
    quartiles = statistics.quantiles(ordered, n=4, method="inclusive") if len(ordered) > 1 else [ordered[0]] * 3
    return {"median": statistics.median(ordered), "q1": quartiles[0], "q3": quartiles[2], "min": ordered[0],
            "max": ordered[-1], "n": len(ordered)}  # fmt: skip


def _about() -> str:
    """The first sentence or paragraph of the benchmark's own docstring."""
    described = (sys.modules["__main__"].__doc__ or "").strip()
    return " ".join(described.split("\n\n")[0].split())


def _cpu_model() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    except FileNotFoundError:
        return platform.processor()
    return platform.processor()
