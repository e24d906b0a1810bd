"""Code is pinned once, kept in the store, and given back as it was pinned."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

from elastic_core.errors import InfrastructureError
from elastic_core.protocol.process_groups import CODE, LaunchOrder, code_of
from elastic_core.protocol.service import JobControl
from elastic_core.settings import Settings
from elastic_core.state.job_code.pinned_code import fetch, pin
from tests.builders import a_spec
from tests.launch.builders import order as any_order


class Results:
    """What the ledger keeps of `record_results`, which is all that is asked of it."""

    def __init__(self) -> None:
        self.of_job: dict[str, Any] = {}

    def record_results(self, job_id: str, results: Mapping[str, Any]) -> None:
        del job_id
        self.of_job |= results


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    project = tmp_path / "project"
    (project / "mine").mkdir(parents=True)
    (project / "mine" / "task.py").write_text("VERSION = 1\n")
    return Settings(home=tmp_path / "home", project=project, tasks="mine.*")


@pytest.fixture
def order() -> LaunchOrder:
    return replace(any_order(), spec=a_spec(entry_point="mine.task:Task"))


def pinned(settings: Settings, order: LaunchOrder, results: Results) -> LaunchOrder:
    return pin(cast(JobControl, results), settings, order)


def test_a_later_start_gets_what_the_first_one_ran_whatever_became_of_the_project(
    settings: Settings, order: LaunchOrder, tmp_path: Path
) -> None:
    results = Results()
    first = pinned(settings, order, results)
    (settings.project / "mine" / "task.py").write_text("VERSION = 2\n")
    known = code_of(results.of_job)
    assert (known.sha256, known.packages, known.files) == (first.code, ("mine",), 1)
    assert known.words == f"mine (1 file, 0.0 MiB), pinned as {first.code[:12]}"
    again = pinned(settings, replace(order, code=known.sha256), results)
    assert again.code == first.code
    folder = fetch(settings, again.code, tmp_path / "code")
    assert folder is not None
    assert (folder / "mine" / "task.py").read_text() == "VERSION = 1\n"
    assert fetch(settings, again.code, tmp_path / "code") == folder  # a second start in the same place


def test_jobs_of_the_same_code_keep_it_once(settings: Settings, order: LaunchOrder) -> None:
    for _ in range(3):
        pinned(settings, order, Results())
    assert len(list((settings.home / "store" / "code").iterdir())) == 1


def test_code_that_the_store_lacks_or_holds_changed_is_said_and_not_run(
    settings: Settings, order: LaunchOrder, tmp_path: Path
) -> None:
    code = pinned(settings, order, Results()).code
    (kept,) = (settings.home / "store" / "code").iterdir()
    kept.write_bytes(kept.read_bytes()[:-8])
    with pytest.raises(InfrastructureError, match="cannot be unpacked"):
        fetch(settings, code, tmp_path / "code")
    kept.unlink()
    with pytest.raises(InfrastructureError, match=r"lacks code/.*cancel and revive the job"):
        fetch(settings, code, tmp_path / "code")
    assert not (tmp_path / "code").exists()


def test_code_that_is_too_large_runs_as_each_node_has_it_and_that_is_said(
    settings: Settings, order: LaunchOrder
) -> None:
    (settings.project / "mine" / "weights.bin").write_bytes(bytes(2 << 20))
    results = Results()
    assert pinned(settings.model_copy(update={"code_mb": 1}), order, results).code == ""
    assert code_of(results.of_job).words.startswith("not pinned: the code of mine.task:Task is larger")


def test_installed_code_is_not_pinned(settings: Settings, order: LaunchOrder) -> None:
    results = Results()
    assert pinned(settings, replace(order, spec=a_spec(entry_point="torch.nn:Module")), results).code == ""
    assert CODE not in results.of_job


def test_an_operator_may_pin_none(settings: Settings, order: LaunchOrder, tmp_path: Path) -> None:
    results = Results()
    assert pinned(settings.model_copy(update={"code_mb": 0}), order, results).code == ""
    assert fetch(settings, "", tmp_path / "code") is None
    assert not results.of_job


def test_code_that_is_pinned_is_run_whatever_the_bound_is_by_now(
    settings: Settings, order: LaunchOrder, tmp_path: Path
) -> None:
    code = pinned(settings, order, Results()).code
    folder = fetch(settings.model_copy(update={"code_mb": 0}), code, tmp_path / "code")
    assert folder is not None
    assert (folder / "mine" / "task.py").exists()
