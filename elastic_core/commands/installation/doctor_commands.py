"""`elastic doctor`: what is wrong with this installation, and what to do about it."""

from __future__ import annotations

import typer

from elastic_core.commands.installation.checks import all_findings
from elastic_core.commands.installation.finding import Verdict
from elastic_core.commands.printing import Json, Words, print_json
from elastic_core.domain import to_json
from elastic_core.settings import Settings

app = typer.Typer()
_out = Words(highlight=False, soft_wrap=True)
_COLOURS = {Verdict.OK: "green", Verdict.WARN: "yellow", Verdict.FAIL: "red"}


@app.command()
def doctor(as_json: Json = False) -> None:
    """Look at versions, settings, ports, databases, store and services. Exit code 1: something has to be mended."""
    failed = False
    found = []
    for finding in all_findings(Settings()):
        failed |= finding.verdict is Verdict.FAIL
        found.append(to_json(finding))
        if not as_json:  # one by one: some take a moment
            _out.print(f"{finding.verdict:5}", style=_COLOURS[finding.verdict], end="")
            _out.print(f"{finding.check:14} {finding.says}", markup=False)
            if finding.do:
                _out.print(f"{'':19} -> {finding.do}", markup=False)
    if as_json:
        print_json(found)
    if failed:
        raise typer.Exit(1)
