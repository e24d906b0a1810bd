"""`elastic placement ...` on the profile of the guide."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from elastic_core.commands.placement_commands import app
from elastic_core.errors import UserError

PROFILE = str(Path(__file__).parents[2] / "examples" / "specs" / "ctr_placement.json")


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


def test_the_planners_are_listed() -> None:
    assert "brute_force" in json.loads(elastic("planners", "--json").stdout)
