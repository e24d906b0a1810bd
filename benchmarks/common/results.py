"""The pages under docs/results, made from what the benchmarks wrote: no figure there is typed by hand.

    .venv/bin/python -m benchmarks.decide            # writes benchmarks/out/decide.json
    .venv/bin/python -m benchmarks.common.results decide

takes benchmarks/out/NAME.json, keeps it without its raw figures as docs/results/NAME.json (and single runs of a long
benchmark as NAME.runs.jsonl: `kept_runs`), and renders NAME.md and the list of all pages from the kept files. Without a
NAME it renders what is kept again. tests/docs compares both.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.common import kept_runs
from benchmarks.common.kept_runs import RESULTS
from benchmarks.common.report import OUT

LIST = "README.md"
BY_HAND = "Made by `python -m benchmarks.common.results` from {}; an edit by hand fails the tests."


def keep(name: str, out: Path = OUT, results: Path = RESULTS) -> None:
    """Keep a benchmark's last run as docs/results/NAME.json. FileNotFoundError where it was never run here."""
    run = json.loads((out / f"{name}.json").read_text())
    del run["figures"]
    kept_runs.keep(name, out, results)
    (results / f"{name}.json").write_text(json.dumps(run, indent=1) + "\n")


def pages(results: Path = RESULTS) -> dict[str, str]:
    """File name -> text of every page that the kept runs render to."""
    runs = [json.loads(path.read_text()) for path in sorted(results.glob("*.json"))]
    return {LIST: contents(runs), **{f"{run['benchmark']}.md": page(run) for run in runs}}


def page(run: dict[str, Any]) -> str:
    """One run as Markdown."""
    machine = run["machine"]
    installed = ", ".join(f"{name} {version}" for name, version in run["versions"].items())
    facts = [
        ("date", run["date"]),
        ("command", f"`{run['command']}`"),
        ("machine", f"{machine['cores']} cores, {machine['cpu']}, {machine['memory_gib']} GiB, {machine['system']}"),
        ("load before it began", f"{machine['load_at_start']:g}"),
        ("versions", f"Python {machine['python']}, {installed}"),
        ("took", f"{run['seconds']:.0f} s"),
    ]
    bars = [(bar["bar"], bar["want"], bar["got"], "yes" if bar["ok"] else "**no**") for bar in run["bars"]]
    parts = [
        f"# {run['benchmark']}",
        run["about"],
        BY_HAND.format(f"[{run['benchmark']}.json]({run['benchmark']}.json)"),
        table(("", ""), facts),
        "## Bars",
        table(("bar", "wanted", "measured", "holds"), bars),
    ]
    for shown in run["tables"]:
        parts += [f"## {shown['title']}", table(shown["columns"], shown["rows"])]
    return "\n\n".join(parts) + "\n"


def contents(runs: Sequence[dict[str, Any]]) -> str:
    """The list of all pages, with how many bars each run holds."""
    rows = [
        (
            f"[{run['benchmark']}]({run['benchmark']}.md)",
            run["about"],
            run["date"],
            f"`{run['command']}`",
            f"{sum(bar['ok'] for bar in run['bars'])} of {len(run['bars'])}",
        )
        for run in runs
    ]
    columns = ("benchmark", "what it asks", "date", "command", "bars that hold")
    return "\n\n".join(["# Results", BY_HAND.format("the JSON files beside it"), table(columns, rows)]) + "\n"


def table(columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    lines = [columns, ["---"] * len(columns), *rows]
    return "\n".join("| " + " | ".join(str(cell).replace("|", "\\|") for cell in line) + " |" for line in lines)


def main(names: Sequence[str]) -> int:
    RESULTS.mkdir(parents=True, exist_ok=True)
    for name in names:
        keep(name)
    for file, text in pages().items():
        (RESULTS / file).write_text(text)
        print(f"wrote docs/results/{file}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
