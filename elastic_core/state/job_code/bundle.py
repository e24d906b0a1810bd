"""Which files are a job's code, and those files as one archive.

A job's code is the top-level package (or module) of its entry point, whole, with the data in it, and what its files
import, directly or not, from outside of the interpreter's installed packages. Those and the platform are no part of it:
they are the environment, which checkpoints name by its versions. Nothing is imported to find it.

The archive is a zip whose bytes nobody compares: the code is named by the SHA-256 of what it holds.
"""

from __future__ import annotations

import hashlib
import importlib.util
import io
import re
import sysconfig
import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path, PurePosixPath

from elastic_core.errors import InfrastructureError, UserError

PLATFORM = frozenset({"elastic_core", "elastic_airflow"})
MOST_FILES = 20_000
_INSTALLED = ("stdlib", "platstdlib", "purelib", "platlib")
_INSTALLED_FOLDERS = frozenset({"site-packages", "dist-packages"})
# Statements, and now and then a line of a docstring, which names a module that is not there.
_IMPORT = re.compile(rb"^[ \t]*(?:from[ \t]+([A-Za-z_]\w*)|import[ \t]+([A-Za-z_][\w., \t]*))", re.MULTILINE)
_MADE_AT = (1980, 1, 1, 0, 0, 0)  # the earliest that a zip can say


@dataclass(frozen=True, slots=True)
class JobCode:
    """`files`: contents by path, relative to the folder that is to be on `sys.path`."""

    files: Mapping[str, bytes]

    @property
    def sha256(self) -> str:
        digest = hashlib.sha256()
        for name, content in sorted(self.files.items()):
            digest.update(f"{name}\0{hashlib.sha256(content).hexdigest()}\n".encode())
        return digest.hexdigest()

    @property
    def packages(self) -> tuple[str, ...]:
        """Top-level names that can be imported from it."""
        return tuple(sorted({name.partition("/")[0].removesuffix(".py") for name in self.files}))

    @property
    def num_bytes(self) -> int:
        return sum(map(len, self.files.values()))


def collect(entry_point: str, project: Path, most_bytes: int) -> JobCode:
    """The code of an entry point as it lies there now; without files where it is installed, or cannot be found.

    Raises `UserError` for code that is larger.
    """
    files: dict[str, bytes] = {}
    size = 0
    for path, relative in files_of_code(entry_point, project):
        content = path.read_bytes()
        size += len(content)
        if size > most_bytes or len(files) >= MOST_FILES:
            raise UserError(
                f"the code of {entry_point} is larger than what is kept of a job's code: with {relative} it has "
                f"{size / 2**20:.1f} MiB in {len(files) + 1} files, at most {most_bytes / 2**20:g} MiB in "
                f"{MOST_FILES} are kept (ELASTIC_CODE_MB). Move data out of the package"
            )
        files[relative] = content
    return JobCode(files)


def files_of_code(entry_point: str, project: Path) -> Iterator[tuple[Path, str]]:
    """Each with the path that it is to have. Found one by one, by what those before import."""
    looked_at, wanted = set(PLATFORM), [entry_point.partition(":")[0].partition(".")[0]]
    while wanted:
        name = wanted.pop()
        if name in looked_at:
            continue
        looked_at.add(name)
        for path, relative in _files_of(name, project):
            yield path, relative
            if path.suffix == ".py":
                wanted += _imported(path.read_bytes())


def pack(code: JobCode) -> bytes:
    """A zip of it."""
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in sorted(code.files.items()):
            archive.writestr(zipfile.ZipInfo(name, _MADE_AT), content, zipfile.ZIP_DEFLATED)
    return packed.getvalue()


def unpack(content: bytes, sha256: str, most_bytes: int) -> JobCode:
    """What was packed. Raises `InfrastructureError` for anything else, before more than `most_bytes` are read."""
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            size = sum(info.file_size for info in archive.infolist())
            if size > most_bytes or len(archive.infolist()) > MOST_FILES:
                raise InfrastructureError(f"the code {sha256} says that it has {size} bytes: it is none of ours")
            code = JobCode({info.filename: archive.read(info) for info in archive.infolist()})
    except (zipfile.BadZipFile, ValueError, NotImplementedError, RuntimeError) as error:
        raise InfrastructureError(f"the code {sha256} cannot be unpacked: {error}") from error
    if code.sha256 != sha256:
        raise InfrastructureError(f"the code {sha256} was changed in the store: it holds {code.sha256}")
    foreign = [name for name in code.files if not _inside(name)]
    if foreign:
        raise InfrastructureError(f"the code {sha256} has files outside of its folder: {', '.join(foreign[:3])}")
    return code


def write(code: JobCode, folder: Path) -> None:
    """Have the files in `folder`, which must not be there yet, readable by whoever may pass the folders above."""
    folder.mkdir(mode=0o755)
    folder.chmod(0o755)
    for name, content in code.files.items():
        path = folder / name
        for above in reversed(path.relative_to(folder).parents[:-1]):
            (folder / above).mkdir(exist_ok=True)
            (folder / above).chmod(0o755)
        path.write_bytes(content)
        path.chmod(0o644)


def _inside(name: str) -> bool:
    parts = PurePosixPath(name).parts
    return bool(parts) and not name.startswith("/") and ".." not in parts and "\\" not in name and "\0" not in name


def _imported(content: bytes) -> Iterator[str]:
    """Top-level names that a file imports."""
    for source, modules in _IMPORT.findall(content):
        if source:
            yield source.decode()
        for module in modules.split(b","):
            name = module.split(b".")[0].strip()
            if name:
                yield name.split()[0].decode()


def _files_of(name: str, project: Path) -> Iterator[tuple[Path, str]]:
    """Of a top-level package or module, by the path that it is to have; nothing where it is installed."""
    spec = _spec(name, project)
    if spec is None:
        return
    if spec.submodule_search_locations is None:
        path = Path(spec.origin or "")
        if path.suffix == ".py" and path.is_file() and not _is_installed(path):
            yield path, path.name
        return
    for location in map(Path, spec.submodule_search_locations):
        if not _is_installed(location):
            yield from _below(location, name)


def _spec(name: str, project: Path) -> ModuleSpec | None:
    found = PathFinder.find_spec(name, [str(project.absolute())])
    if found is not None:
        return found
    try:
        return importlib.util.find_spec(name)
    except (ImportError, ValueError):  # a name that is no module, or one that this process has made up
        return None


def _below(folder: Path, name: str) -> Iterator[tuple[Path, str]]:
    for path in sorted(folder.rglob("*")):
        inside = path.relative_to(folder)
        hidden = any(part.startswith(".") or part == "__pycache__" for part in inside.parts)
        if not hidden and path.suffix != ".pyc" and path.is_file():
            yield path, (PurePosixPath(name) / inside).as_posix()


def _is_installed(path: Path) -> bool:
    if _INSTALLED_FOLDERS & set(path.parts):
        return True
    return any(path.is_relative_to(sysconfig.get_path(kind)) for kind in _INSTALLED)
