"""A model needs the installed packages that its task's code imports, at the versions that it was trained with."""

from __future__ import annotations

from importlib.metadata import version
from pathlib import Path

import pytest

from elastic_core.state.job_code.distributions import requirements_of

FILES = {
    "pets/__init__.py": "",
    "pets/models.py": "import os, numpy as np\nfrom sklearn.datasets import load_digits\nimport helper\n",
    "pets/other.py": "def late():\n    import yaml.nodes\n\ntry: import no_such_package\nexcept ImportError: ...\n",
    "pets/broken.py": "import scipy (",
    "pets/weights.bin": "import pandas",
    "helper.py": "from google.protobuf import message\nfrom elastic_core.train.task import Task\nfrom . import x\n",
    "unused.py": "import pyarrow",
}


@pytest.fixture
def project(tmp_path: Path) -> Path:
    for name, content in FILES.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(content)
    return tmp_path


def pinned(*names: str) -> tuple[str, ...]:
    return tuple(sorted(f"{name}=={version(name).partition('+')[0]}" for name in names))


def test_what_the_code_of_a_task_imports_is_pinned_by_the_name_it_is_installed_under(project: Path) -> None:
    """Directly or by what lies beside its package. Not the platform, the standard library, nor what is not installed;
    and of a package that several distributions share (`google`), the one with the part that is imported."""
    assert requirements_of("pets.models:Cats", project) == pinned("numpy", "scikit-learn", "PyYAML", "protobuf")


def test_a_task_of_an_installed_package_needs_that(tmp_path: Path) -> None:
    assert requirements_of("sklearn.svm:SVC", tmp_path) == pinned("scikit-learn")


def test_the_platforms_own_tasks_need_no_more(tmp_path: Path) -> None:
    assert requirements_of("elastic_core.train.task:Task", tmp_path) == ()


def test_code_that_is_not_there_needs_nothing(tmp_path: Path) -> None:
    assert requirements_of("gone.models:Cats", tmp_path) == ()
