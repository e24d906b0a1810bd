"""The walls between rooms (.importlinter) stand: every contract is broken by an import that it is there to refuse."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from configparser import ConfigParser
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
CONFIG = ".importlinter"
PREFIX = "importlinter:contract:"

# Contract -> (file, modules that it must not import, all planted at once).
PLANTS: dict[str, list[tuple[str, str]]] = {
    "rooms": [
        ("elastic_core/policy/base/queue.py", "elastic_core.control.plane"),
        ("elastic_core/train/session.py", "elastic_core.launch.local"),
        ("elastic_core/sim/engine/engine.py", "elastic_core.train.task"),
        ("elastic_core/state/buffers.py", "elastic_core.policy.registry"),
        ("elastic_core/domain/decisions.py", "elastic_core.spec"),
        ("elastic_core/unplaced.py", ""),  # a room that nobody has placed
    ],
    "core": [("elastic_core/commands/files.py", "elastic_airflow.names")],
    "circles": [
        ("elastic_core/predict/work/convergence.py", "elastic_core.predict.predictability.hindsight"),
        ("elastic_core/spec/problems.py", "elastic_core.spec.job"),
    ],
    "simulator": [("elastic_core/control/plane.py", "elastic_core.sim.replay")],
    "policy": [
        ("elastic_core/policy/sia/sia.py", "elastic_core.policy.pollux.pollux"),
        ("elastic_core/policy/base/queue.py", "elastic_core.policy.horizon.horizon"),
        ("elastic_core/policy/rules/quotas.py", "elastic_core.policy.horizon.horizon"),
    ],
    "predict": [("elastic_core/predict/work/run_so_far.py", "elastic_core.predict.predictability.hindsight")],
    "state": [
        ("elastic_core/state/format/manifest.py", "elastic_core.state.reshard.memories"),
        ("elastic_core/state/stores/keys.py", "elastic_core.state.format.manifest"),
    ],
    "control": [
        ("elastic_core/control/ledger/leases.py", "elastic_core.control.transitions.commits"),
        ("elastic_core/control/scheduling/allocator.py", "elastic_core.control.transitions.commits"),
    ],
    "train": [
        ("elastic_core/train/task.py", "elastic_core.train.session"),
        ("elastic_core/train/checkpoint/restore.py", "elastic_core.train.process.worker"),
    ],
    "sim": [("elastic_core/sim/ground_truth/physics.py", "elastic_core.sim.engine.engine")],
    "airflow": [("plugins/elastic_airflow/names.py", "elastic_airflow.operators")],
    "pure": [
        (f"elastic_core/{file}", "airflow boto3 fastapi httpx mlflow ray sqlalchemy torch")
        for file in (
            "domain/resources.py",
            "spec/job.py",
            "policy/horizon/horizon.py",
            "predict/speed/fit.py",
            "sim/replay.py",
            "placement/placement_problem.py",
        )
    ],
    "control-plane": [
        ("elastic_core/control/plane.py", "airflow boto3 mlflow ray torch"),
        ("elastic_core/protocol/trainer.py", "airflow boto3 mlflow ray torch"),
    ],
    "training": [
        (f"elastic_core/{file}", "airflow fastapi mlflow psycopg2 sqlalchemy")
        for file in ("state/buffers.py", "train/session.py", "comm/algorithm.py", "view/nodes.py")
    ],
    "launching": [
        (f"elastic_core/{file}", "airflow boto3 mlflow sqlalchemy torch")
        for file in ("launch/local.py", "host/process.py", "services/stack.py")
    ],
    "tracking": [("elastic_core/track/facts.py", "airflow")],
    "s3": [("elastic_core/state/stores/local_store.py", "boto3")],
    "http": [("elastic_core/commands/files.py", "httpx")],
    "ray": [("elastic_core/launch/local.py", "ray")],
    "stores": [("elastic_core/state/stores/paths.py", "torch")],
}


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the packages and of the contracts."""
    copy = tmp_path_factory.mktemp("house")
    sources = shutil.ignore_patterns("__pycache__", "*.pyc")
    shutil.copytree(ROOT / "elastic_core", copy / "elastic_core", ignore=sources)
    shutil.copytree(ROOT / "plugins" / "elastic_airflow", copy / "plugins" / "elastic_airflow", ignore=sources)
    shutil.copy(ROOT / CONFIG, copy / CONFIG)
    return copy


def lint(house: Path, contract: str | None = None) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", "from importlinter.cli import lint_imports_command; lint_imports_command()"]
    chosen = ["--contract", contract] if contract else []
    environment = {**os.environ, "PYTHONPATH": f"{house}:{house / 'plugins'}", "COLUMNS": "200"}
    return subprocess.run(
        [*command, "--config", str(house / CONFIG), "--no-logo", "--cache-dir", str(house / ".cache"), *chosen],
        cwd=house, env=environment, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip


def test_the_house_as_it_is_keeps_every_contract(house: Path) -> None:
    done = lint(house)
    assert done.returncode == 0, done.stdout


def test_every_contract_is_tried() -> None:
    config = ConfigParser()
    config.read(ROOT / CONFIG)
    assert {name.removeprefix(PREFIX) for name in config.sections() if name.startswith(PREFIX)} == set(PLANTS)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("contract", PLANTS)
def test_an_import_through_a_wall_is_refused(house: Path, contract: str) -> None:
    for place, forbidden in PLANTS[contract]:
        file = house / place
        before = file.read_text() if file.exists() else None
        imports = "".join(f"    import {module}\n" for module in forbidden.split())
        file.write_text(
            f"{before or ''}\n\ndef _planted():\n{imports}    return None\n"
        )  # in a function: they count, too
        try:
            done = lint(house, contract)
        finally:
            file.unlink() if before is None else file.write_text(before)
        assert done.returncode == 1, f"{contract} lets {place} have {forbidden}:\n{done.stdout}"
        if contract != "circles":  # that one names packages
            said = " ".join(done.stdout.split())
            assert place.removeprefix("plugins/").removesuffix(".py").replace("/", ".") in said
            assert [module for module in forbidden.split() if f"-> {module}" not in said] == []


def test_a_circle_that_only_types_close_is_one(house: Path) -> None:
    file = house / "elastic_core/policy/plans/moves.py"
    before = file.read_text()
    circle = "from elastic_core.policy.plans.grants import covers"
    planted = f"from typing import TYPE_CHECKING\n\nif TYPE_CHECKING:\n    {circle}\n"
    file.write_text(f"{before}\n{planted}")
    try:
        done = lint(house, "circles")
    finally:
        file.write_text(before)
    assert done.returncode == 1, done.stdout
