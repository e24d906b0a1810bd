"""`elastic simulate`: by name, from generated and published workloads, with errors that say what to do."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from elastic_core.cli import build
from elastic_core.errors import UserError

SMALL = ("--jobs", 8, "--policy", "fixed", "--policy", "fair_share")


def elastic(*arguments: object) -> Result:
    return CliRunner().invoke(build(), ["simulate", *map(str, arguments)], env={"COLUMNS": "200"})


def printed(*arguments: object) -> Any:
    done = elastic(*arguments, "--json")
    assert done.exit_code == 0, done.output
    return json.loads(done.stdout)


def refusal(*arguments: object) -> str:
    error = elastic(*arguments).exception
    assert isinstance(error, UserError)
    return str(error)


def test_it_compares_policies_on_a_workload_that_needs_no_data(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ELASTIC_DATA", raising=False)
    done = elastic(*SMALL)
    assert done.exit_code == 0
    for word in ("fixed", "fair_share", "mean", "p99", "makespan", "utilisation", "rho mean"):
        assert word in done.stdout


def test_json_has_the_figures_and_every_job() -> None:
    found = printed(*SMALL)
    assert [result["policy"] for result in found["results"]] == ["fixed", "fair_share"]
    for result in found["results"]:
        assert result["figures"]["completed"] == len(result["jobs"]) == 8
        times = [job["completion_seconds"] for job in result["jobs"]]
        assert result["figures"]["mean_completion"] == pytest.approx(sum(times) / 8)


def test_the_same_seed_gives_the_same_figures_and_another_seed_another_workload() -> None:
    def completions(seed: int) -> list[float]:
        found = printed("--jobs", 8, "--policy", "elastic_batch", "--seed", seed)
        return [job["completion_seconds"] for job in found["results"][0]["jobs"]]

    assert completions(1) == completions(1)
    assert completions(1) != completions(2)


def test_a_cluster_file_takes_the_place_of_the_named_cluster(tmp_path: Path) -> None:
    spec = tmp_path / "mine.json"
    spec.write_text(json.dumps({"nodes": [{"name": "n1", "type": "h200", "slots": 16}]}))
    assert printed(*SMALL, "--cluster", spec)["cluster"] == [{"name": "n1", "type": "h200", "slots": 16}]


def test_until_stops_early_and_says_that_the_figures_are_partial() -> None:
    done = elastic(*SMALL, "--until", "10min")
    assert done.exit_code == 0
    assert "PARTIAL" in done.stdout
    assert "time limit" in done.stdout


def test_a_page_and_the_results_are_written_to_a_folder(tmp_path: Path) -> None:
    assert elastic(*SMALL, "--out", tmp_path / "report").exit_code == 0
    written = json.loads((tmp_path / "report" / "results.json").read_text())
    assert written["results"][0]["held"]
    assert (tmp_path / "report" / "report.html").read_text().startswith("<!doctype html>")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("generate",), "no workload is called 'generate'. Did you mean 'generated'?"),
        (("--policy", "fair_shar"), "no policy is called 'fair_shar'. Did you mean 'fair_share'?"),
        (("--cluster", "64t4"), "no cluster is called '64t4'. Did you mean '64-t4'?"),
        (("--cluster", "gone.json"), "gone.json cannot be read"),
        (("--until", "soon"), "--until is 'soon'; it takes a time such as 90, 90s, 10min, 8h or 2d"),
        (("--rounds", "0"), "--rounds is '0'; it takes a time"),
    ],
)
def test_what_is_not_known_is_refused_by_name(arguments: tuple[str, ...], message: str) -> None:
    assert message in refusal(*arguments)


def test_a_published_workload_without_the_data_says_where_to_look(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ELASTIC_DATA", raising=False)
    assert "ELASTIC_DATA is ''" in refusal("sia-philly-1")


def test_a_malformed_trace_is_refused_by_file_line_and_column(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = os.environ.get("ELASTIC_DATA")
    if not data:
        pytest.skip("ELASTIC_DATA does not name the published traces")
    (tmp_path / "sia-sosp23" / "workloads" / "philly").mkdir(parents=True)
    (tmp_path / "sia-sosp23" / "traces").symlink_to(Path(data) / "sia-sosp23" / "traces")
    trace = tmp_path / "sia-sosp23" / "workloads" / "philly" / "workload-1.csv"
    trace.write_text("name,time,application,num_replicas,batch_size\na,0,bert,1,12\nb,soon,bert,1,12\n")
    monkeypatch.setenv("ELASTIC_DATA", str(tmp_path))
    assert f"{trace}, line 3, column 'time': 'soon' is no number" in refusal("sia-philly-1")


def test_the_list_names_workloads_clusters_and_policies() -> None:
    found = printed("--list")
    assert {"generated", "pollux-1", "sia-philly-1"} <= {row["name"] for row in found["workloads"]}
    assert {"sia-heterogeneous", "64-t4"} <= {row["name"] for row in found["clusters"]}
    assert {row["cluster"] for row in found["workloads"]} <= {row["name"] for row in found["clusters"]}
    assert "elastic_batch" in found["policies"]
    assert elastic("--list").exit_code == 0


def test_ctrl_c_prints_what_was_computed_and_exits_with_130() -> None:
    """A real process and a real signal, in the middle of the first policy's run."""
    code = (
        "import os, signal, sys\n"
        "from elastic_core.commands import simulate as command\n"
        "run = command.simulate\n"
        "def interrupted(*given, progress):\n"
        "    def tell(ended, total, now):\n"
        "        if ended == 5:\n"
        "            os.kill(os.getpid(), signal.SIGINT)\n"
        "        progress(ended, total, now)\n"
        "    return run(*given, progress=tell)\n"
        "command.simulate = interrupted\n"
        "from elastic_core.cli import build; build()(sys.argv[1:])\n"
    )
    command = [sys.executable, "-c", code, "simulate", "--policy", "fixed", "--policy", "fair_share"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 130, done.stderr
    assert "PARTIAL: fixed stopped (interrupted)" in " ".join(done.stdout.split())
    assert "5 of 60 jobs ended" in " ".join(done.stdout.split())
    assert "fair_share" not in done.stdout, "it was not begun"
