"""Writes a project's folder: Airflow's configuration, the DAG files, the examples and the presets of the form.

A wheel carries these files; an editable install takes those of its checkout.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from elastic_core.commands.installation.home import CHECKOUT
from elastic_core.commands.installation.home import PROJECT as TEMPLATE
from elastic_core.errors import Conflict, InfrastructureError

SHIPPED = Path(__file__).parent / "shipped"  # setup.py puts the files there
PATTERNS = (TEMPLATE, "dags/*.py", "examples/*.py", "examples/*/*.json")


@dataclass(frozen=True, slots=True)
class Written:
    """Paths below the folder."""

    new: tuple[Path, ...]
    same: tuple[Path, ...]  # had been there


def write_project(folder: Path, *, replace: bool = False, source: Path | None = None) -> Written:
    """Write what is not there. Twice is once.

    Raises `Conflict`, having written nothing, where a file is there with another content, unless `replace`; and
    `InfrastructureError` where this installation has no such files.
    """
    files = project_files(source)
    there = {name for name in files if (folder / name).exists()}
    same = {name for name in there if (folder / name).is_file() and (folder / name).read_bytes() == files[name]}
    if (changed := sorted(there - same)) and not replace:
        raise Conflict(
            f"{folder} has other files than this release writes: {', '.join(map(str, changed))}. Nothing was written: "
            "move yours away, or have them replaced by --replace"
        )
    new = tuple(sorted(files.keys() - same))
    for name in new:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(files[name])
    return Written(new=new, same=tuple(sorted(same)))


def project_files(source: Path | None = None) -> Mapping[Path, bytes]:
    """Contents by path below the project's folder; of `source`, or of this installation."""
    source = source or (SHIPPED if SHIPPED.is_dir() else CHECKOUT)
    found = {pattern: sorted(source.glob(pattern)) for pattern in PATTERNS}
    if missing := [pattern for pattern, files in found.items() if not files]:
        raise InfrastructureError(
            f"{source} has no {', '.join(missing)}: this is neither an installed wheel nor a checkout; install again"
        )
    return {file.relative_to(source): file.read_bytes() for files in found.values() for file in files}
