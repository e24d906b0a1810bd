"""A model is made by its job's pinned code, and by the workers' user where there is one; what that has written is taken
over without a link."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from mlflow.models import Model

from elastic_core.errors import InfrastructureError
from elastic_core.host.worker_user.giving import give_folder
from elastic_core.host.worker_user.identity import WorkerUser
from elastic_core.protocol.process_groups import code_of
from elastic_core.settings import Settings
from elastic_core.spec import JobSpec
from elastic_core.state.job_code.pinned_code import pin
from elastic_core.track.export_process import save_model_as_user, take_over
from tests.launch.builders import order
from tests.security.user_probe import assert_reached_nothing, targets
from tests.security.worker_namespace import NAME, PROJECT, namespace, open_home
from tests.train.tasks import network


@pytest.fixture(scope="module")
def user() -> Iterator[WorkerUser]:
    with namespace() as found:
        yield found


def a_spec(home: Path, reports: Path) -> JobSpec:
    return JobSpec.model_validate(
        {
            "name": "judged",
            "entry_point": "tests.security.user_probe:Reaching",
            "params": {"targets": targets(home), "report": str(reports)},
            "work": {"samples": 96},
            "batch": {"min": 8, "max": 8},
        }
    )


@pytest.mark.nightly
def test_the_users_code_makes_the_model_as_the_user_and_root_takes_it_over(user: WorkerUser) -> None:
    with open_home() as home:
        reports, weights = home.parent / "reports", network().state_dict()
        give_folder(reports, user)
        (home / "secrets").mkdir(mode=0o700)
        settings = Settings(home=home, project=PROJECT, tasks="tests.*", worker_user=NAME)
        folder = home / "model"
        save_model_as_user(folder, a_spec(home, reports), settings, weights, {"metadata": {"elastic": "origin"}})
        assert_reached_nothing(json.loads((reports / "made").read_text()), user)
        assert {path.stat().st_uid for path in (folder, *folder.rglob("*"))} == {0}
        assert Model.load(str(folder)).metadata == {"elastic": "origin"}  # to load the model itself is to run its code


@pytest.mark.parametrize("kind", ["link", "pipe"])
def test_what_is_no_file_of_its_own_is_not_taken_over(tmp_path: Path, kind: str) -> None:
    made, secret = tmp_path / "made" / "model", tmp_path / "secret"
    made.mkdir(parents=True)
    secret.write_text("secret")
    if kind == "link":
        (made / "weights").symlink_to(secret)
    else:
        os.mkfifo(made / "weights")
    with pytest.raises(InfrastructureError, match=r"cannot be taken over: .*(leads out of|is no regular file)"):
        take_over(made, tmp_path / "taken")
    assert not (tmp_path / "taken" / "weights").exists()


def test_a_folder_that_changes_all_the_while_leads_nobody_out(tmp_path: Path) -> None:
    made, outside, stop = tmp_path / "made" / "model", tmp_path / "outside", threading.Event()
    made.mkdir(parents=True)
    outside.mkdir()
    (outside / "file").write_text("outside")
    (tmp_path / "made" / "inside").mkdir()
    (tmp_path / "made" / "inside" / "file").write_text("inside")

    def flip() -> None:
        while not stop.is_set():
            for target in (outside, tmp_path / "made" / "inside"):
                (made.parent / "next").symlink_to(target / "file")
                os.replace(made.parent / "next", made / "file")

    flipping = threading.Thread(target=flip)
    flipping.start()
    taken = set()
    try:
        for number in range(200):
            target = tmp_path / f"taken-{number}"
            try:
                take_over(made, target)
            except InfrastructureError:
                continue
            taken |= {path.read_text() for path in target.iterdir()}
    finally:
        stop.set()
        flipping.join()
    assert taken <= {"inside"}


@pytest.mark.e2e
def test_without_the_setting_it_is_made_here(tmp_path: Path) -> None:
    spec = a_spec(tmp_path, tmp_path).model_copy(update={"entry_point": "tests.train.tasks:Regression", "params": {}})
    settings = Settings(home=tmp_path, project=PROJECT, tasks="tests.*")
    save_model_as_user(tmp_path / "model", spec, settings, network().state_dict(), {})
    assert (tmp_path / "model" / "MLmodel").exists()


LINE = """
from torch import nn
from elastic_core.train.task import Task

class Line(Task):
    def model(self):
        return nn.Linear(2, 1, bias=False)

    def optimizer(self, model):
        raise NotImplementedError

    def dataset(self):
        raise NotImplementedError

    def loss(self, model, batch):
        raise NotImplementedError
"""
SERVE = """
import sys
import mlflow
import numpy as np
print(mlflow.pyfunc.load_model(sys.argv[1]).predict(np.array([[3.0, 4.0]], dtype=np.float32)).tolist())
"""


class Recorder:
    """The ledger's part in pinning."""

    def __init__(self) -> None:
        self.results: dict[str, Any] = {}

    def record_results(self, _: str, results: Mapping[str, Any]) -> None:
        self.results.update(results)


@pytest.mark.e2e
def test_a_model_is_made_by_the_code_that_its_job_was_pinned_to_and_takes_it_along(tmp_path: Path) -> None:
    package = tmp_path / "project" / "mine_of_one_test"
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    (package / "line.py").write_text(LINE)
    settings = Settings(home=tmp_path / "home", project=tmp_path / "project", tasks="mine_of_one_test.*")
    spec = JobSpec.model_validate(
        {
            "name": "line",
            "entry_point": "mine_of_one_test.line:Line",
            "work": {"samples": 96},
            "batch": {"min": 8, "max": 8},
        }
    )
    ledger: Any = Recorder()
    pin(ledger, settings, replace(order(), spec=spec))
    (package / "line.py").write_text(LINE.replace("Linear(2, 1", "Linear(5, 1"))
    weights = {"weight": torch.tensor([[10.0, 1.0]])}
    save_model_as_user(tmp_path / "model", spec, settings, weights, {}, code_of(ledger.results).sha256)
    assert (tmp_path / "model" / "code" / "mine_of_one_test" / "line.py").read_text() == LINE
    served = subprocess.run(
        [sys.executable, "-c", SERVE, str(tmp_path / "model")], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert served.stdout.splitlines()[-1] == "[[34.0]]"
