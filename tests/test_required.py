"""What a run of the tests requires fails where it is lacking, and is skipped elsewhere."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests import required

PROJECT = Path(__file__).parents[1]
LACKING = """
from tests.required import lacks, of_adapters

def test_of_ray():
    lacks("ray", "Ray is not installed here")

def test_of_a_library():
    of_adapters("no_such_library")
"""
MODULE = (
    "from tests.required import of_adapters\nlibrary = of_adapters('no_such_library')\n\ndef test_it():\n    pass\n"
)
PAGE = """
from tests.airflow.page import conftest
conftest.CHROMIUM = None
browser = conftest.browser

def test_the_page(browser):
    pass
"""


def tried(folder: Path, text: str, require: str) -> str:
    """The last line that pytest says, in a process whose environment requires this."""
    (folder / "test_lacking.py").write_text(text)
    quiet = ["-q", "-p", "no:cacheprovider", "-p", "no:warnings"]
    command = [sys.executable, "-m", "pytest", *quiet, "--noconftest", "-c", os.devnull]
    environment = {**os.environ, "ELASTIC_REQUIRE": require, "PYTHONPATH": str(PROJECT)}
    done = subprocess.run(
        [*command, "--rootdir", str(folder), str(folder)], env=environment, capture_output=True, text=True
    )
    return done.stdout.strip().splitlines()[-1]


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("text", "require", "said"),
    [(LACKING, "", "2 skipped"), (LACKING, "ray", "1 failed, 1 skipped"), (LACKING, "ray, adapters", "2 failed"),
     (MODULE, "ray", "1 skipped"), (MODULE, "adapters", "1 error"), (PAGE, "ray", "1 skipped"),
     (PAGE, "chromium", "1 error")],
)  # fmt: skip
def test_what_is_lacking_is_skipped_unless_it_is_required(tmp_path: Path, text: str, require: str, said: str) -> None:
    assert tried(tmp_path, text, require).startswith(said)


def test_a_name_that_nothing_asks_for_is_no_requirement() -> None:
    with pytest.raises(
        ValueError, match="ELASTIC_REQUIRE names rey; allowed are adapters, chromium, containers, kubernetes, ray"
    ):
        required.required("ray,rey")


def test_what_make_installs_for_its_tests_it_requires() -> None:
    rules = dict(re.findall(r"^([a-z-]+): (.*\n(?:\t.*\n)*)", (PROJECT / "Makefile").read_text(), re.MULTILINE))
    assert rules["nightly"].startswith("setup ray adapters $(KUBERNETES)/kubernetes-validate\n")
    assert 'ELASTIC_REQUIRE=ray,adapters $(BIN)/pytest $(OPTIONAL) -m "not e2e and not nightly"' in rules["nightly"]
    for name, wanted in (
        ("nightly", "ray,adapters,kubernetes,chromium"), ("docker-test", "containers"),
        ("kubernetes-check", "kubernetes"),
    ):  # fmt: skip
        assert f"ELASTIC_REQUIRE={wanted} $(BIN)/pytest" in rules[name]


@pytest.mark.parametrize(
    ("engine", "said"),
    [("true", "docker-test\n"), ("false", "docker-test is left out: no engine: false info gave 1: \n")],
    ids=["an engine answers", "none does"],
)
def test_nightly_starts_containers_where_an_engine_answers_and_says_where_none_does(engine: str, said: str) -> None:
    (rule,) = re.findall(r"^nightly: .*\n(?:\t.*\n)*", (PROJECT / "Makefile").read_text(), re.MULTILINE)
    assert rule.endswith("\t@$(MAKE) docker-test-if-any\n")
    command = ["make", "--no-print-directory", "docker-test-if-any", "MAKE=echo"]
    environment = {**os.environ, "CONTAINER_ENGINE": engine, "COMPOSE": "true"}
    done = subprocess.run(
        command, cwd=PROJECT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    assert (done.returncode, done.stdout) == (0, said)


def test_what_needs_something_and_is_no_nightly_test_lies_where_nightly_runs_it_again() -> None:
    (listed,) = re.findall(r"^OPTIONAL := (.*)$", (PROJECT / "Makefile").read_text(), re.MULTILINE)
    asks = re.compile(r"on_ray: OnRay|getfixturevalue\(\"on_ray\"\)|skip_without_ray\(\)|= of_adapters\(")
    for path in set((PROJECT / "tests").rglob("test_*.py")) - {Path(__file__)}:
        text, name = path.read_text(), str(path.relative_to(PROJECT))
        if asks.search(text) and not re.search(r"^pytestmark = .*nightly", text, re.MULTILINE):
            assert name.startswith(tuple(listed.split())), f"{name} asks for what only `make nightly` installs"
