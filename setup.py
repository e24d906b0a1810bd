"""What pyproject.toml cannot say: a wheel carries the files of a project, for `elastic init` (decision 0171)."""

from __future__ import annotations

from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py
from setuptools.errors import FileError

ROOT = Path(__file__).parent
SHIPPED = Path("elastic_core", "commands", "installation", "shipped")  # as `project_files` looks for it
PATTERNS = ("airflow.cfg.template", "dags/*.py", "examples/*.py", "examples/*/*.json")


class BuildWithProject(build_py):
    """An editable install needs no copies: its project is the checkout."""

    def run(self) -> None:
        super().run()
        if self.editable_mode:
            return
        for pattern in PATTERNS:
            files = sorted(ROOT.glob(pattern))
            if not files:
                raise FileError(f"{ROOT} has no {pattern}, which a wheel carries: build it from a whole checkout")
            for file in files:
                copy = Path(self.build_lib) / SHIPPED / file.relative_to(ROOT)
                self.mkpath(str(copy.parent))
                self.copy_file(str(file), str(copy))


setup(cmdclass={"build_py": BuildWithProject})
