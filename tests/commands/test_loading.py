"""How little is loaded before a command has something to do."""

from __future__ import annotations

import subprocess
import sys

import pytest

from elastic_core.cli import PARTS, SLOW_PARTS, build, build_for

SLOW = ("torch", "sklearn", "pandas", "mlflow", "boto3", "airflow")


def loaded(program: str) -> set[str]:
    """Top-level modules that a fresh interpreter holds after this program."""
    done = subprocess.run(
        [sys.executable, "-c", f"{program}\nimport sys\nprint(*(name for name in sys.modules if '.' not in name))"],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    return set(done.stdout.split())


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("program", "not_even"),
    [
        ("from elastic_core.cli import build_for; build_for(['jobs', 'list'])", ("scipy",)),
        ("from elastic_core.cli import build; build()", ()),
        ("import elastic_core.control.rpc.http_api", ()),
        ("import elastic_core.launch.local", ("scipy", "numpy")),
    ],
    ids=["a command", "the whole command", "the control plane", "the launcher"],
)
def test_what_is_slow_to_load_is_loaded_by_who_needs_it(program: str, not_even: tuple[str, ...]) -> None:
    assert loaded(program).isdisjoint({*SLOW, *not_even})


def test_slow_parts_are_there_for_who_asks_for_them_for_help_or_for_something_unknown() -> None:
    for arguments in (["simulate", "--list"], ["placement", "planners"], ["--help"], [], ["jbos"]):
        assert set(build_for(arguments).commands) >= {"simulate", "placement", "jobs", "up"}, arguments
    assert "simulate" not in build_for(["jobs", "list"]).commands
    assert set(PARTS) >= SLOW_PARTS
    assert len(build().registered_groups) == len(PARTS)
