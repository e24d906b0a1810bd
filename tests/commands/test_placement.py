"""`elastic placement ...` on the profile of the guide."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from elastic_core.commands.placement_commands import app
from elastic_core.errors import UserError

PROFILE = str(Path(__file__).parents[2] / "examples" / "placement" / "ctr.json")


def elastic(*arguments: str) -> Result:
    return CliRunner().invoke(app, list(arguments))


def test_a_plan_is_shown_by_stage_with_its_cost_and_its_proof() -> None:
    lines = elastic("plan", PROFILE).stdout.splitlines()
    assert lines[1].split() == ["1", "embeddings", "cpu", "16", "0.64"]
    assert lines[2].startswith("2      interaction to head (3)  t4")
    assert "at least 20000 are wanted" in lines[3]
    assert lines[4].startswith("cost: 0.4624 for 45,000,000 samples in ")
    assert lines[6] == "bound: proved: no placement costs less"


def test_json_says_the_same_and_a_floor_on_the_command_line_goes_before_the_files() -> None:
    low, high = (json.loads(elastic("plan", PROFILE, "--json", "--floor", floor).stdout) for floor in ("0", "100000"))
    assert low["gap"] < 1e-7
    assert high["throughput"] >= 100_000
    assert high["cost"] > low["cost"]
    assert [layer for stage in low["stages"] for layer in stage["layers"]] == [
        "embeddings",
        "interaction",
        "mlp",
        "head",
    ]


def test_another_planner_answers_with_no_bound() -> None:
    said = elastic("plan", PROFILE, "--planner", "cpu_only", "--floor", "0").stdout
    assert "planned by: cpu_only" in said
    assert "bound: none; `exact` says how far from the optimum this is" in said


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("plan", PROFILE, "--planner", "exakt"), "no planner is called 'exakt'. Did you mean 'exact'?"),
        (("plan", PROFILE, "--floor", "900000"), "the highest that can be reached is 242352, limited by the stage of "),
        (("plan", PROFILE, "--floor", "-1"), "floor is -1.0; allowed: 0 (none) or more, and finite"),
        (("plan", "none.json"), "none.json cannot be read"),
    ],
)
def test_what_cannot_be_planned_is_refused_in_words(arguments: tuple[str, ...], words: str) -> None:
    refused = elastic(*arguments).exception
    assert isinstance(refused, UserError)
    assert words in str(refused)


def test_a_task_is_profiled_into_what_plan_reads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ELASTIC_HOME", str(tmp_path))
    arguments = ("examples.bytes_lm:BytesLM", "--price", "0.05", "--units", "4", "--batch", "4", "--threads", "1,2")
    done = elastic("profile", *arguments, "--repeats", "1", "--params", '{"depth": 2}')
    profile = json.loads(done.stdout)
    assert profile["batch"] == 4
    assert len(profile["layers"]) >= 2
    file = tmp_path / "measured.json"
    file.write_text(done.stdout)
    planned = json.loads(elastic("plan", str(file), "--json").stdout)
    assert [layer for stage in planned["stages"] for layer in stage["layers"]] == [
        layer["name"] for layer in profile["layers"]
    ]
    wrong = elastic("profile", *arguments, "--threads", "one").exception
    assert "--threads is 'one'; it takes numbers above 0" in str(wrong)


def test_a_policy_is_trained_on_variants_of_a_profile_and_plans_it(tmp_path: Path) -> None:
    file = tmp_path / "policy.safetensors"
    said = elastic("train", str(file), "--like", PROFILE, "--updates", "3").stdout
    assert "update 3 of 3: a drawn choice costs " in said
    assert "a policy trained on variants of ctr" in said
    optimum = json.loads(elastic("plan", PROFILE, "--json").stdout)["cost"]
    planned = json.loads(elastic("plan", PROFILE, "--planner", "rl_lstm", "--policy", str(file), "--json").stdout)
    assert optimum * (1 - 1e-8) <= planned["cost"] <= 1.1 * optimum


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("plan", PROFILE, "--policy", PROFILE), "--policy is for the planners rl_lstm, rl_lstm_search, and --planner"),
        (("plan", PROFILE, "--planner", "rl_lstm", "--policy", PROFILE), "ctr.json cannot be read as a policy"),
        (("train", "/nowhere/policy.safetensors"), "/nowhere is no folder: the policy is written to"),
        (("train", "policy.safetensors", "--like", "none.json"), "none.json cannot be read"),
    ],
)
def test_a_policy_that_cannot_be_used_or_made_is_refused_in_words(arguments: tuple[str, ...], words: str) -> None:
    refused = elastic(*arguments).exception
    assert isinstance(refused, UserError)
    assert words in str(refused)


def test_the_planners_are_listed() -> None:
    assert "brute_force" in json.loads(elastic("planners", "--json").stdout)
