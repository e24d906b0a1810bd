"""`python -m supply_chain.write_lock COMPILE...`: hashes of all files that PyPI has of what is pinned, into the locks.

`COMPILE` is the command of `make lock` (uv's compiler), to which files are added. Versions stay as they are; what torch
needs beside them for CUDA goes into requirements-cuda.lock, what Ray needs into requirements-ray.lock, what Hugging
Face's Trainer and Lightning need into requirements-adapters.lock, and the locks of the tools are written as well.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from supply_chain.lock_files import ADAPTERS_LOCK, CUDA_LOCK, LOCK, RAY_LOCK, ROOT, normal

# Files that PyPI has not got: PyTorch's own CPU build for Linux, of https://download.pytorch.org/whl/cpu.
BESIDE_PYPI = {("torch", "2.13.0"): ("6746dbcbeb526eb61330b76b41ff1b4eb848951103a892eeb080dfa2b264667b",)}
RAY = "ray[default]==2.60.0"
ADAPTERS = "transformers==5.24.0\naccelerate==1.15.0\nlightning==2.6.6"
TOOLS = ("tools", "docs", "kubernetes")  # .in and .lock beside this file


def main(command: Sequence[str]) -> None:
    names = {normal(name): name for name, _ in _pins(LOCK)}
    wanted = "".join(f"{name}=={version}\n" for name, version in _pins(LOCK))
    _write(LOCK, _compiled([*command, "--no-deps"], wanted), names)
    torch = next(f"{name}=={version}\n" for name, version in _pins(LOCK) if name == "torch")
    with_cuda = _compiled([*command, "--constraint", str(LOCK)], torch)
    _write(CUDA_LOCK, [block for block in with_cuda if _name(block) not in names], {})
    for path, wanted in ((RAY_LOCK, RAY), (ADAPTERS_LOCK, ADAPTERS)):
        with_these = _compiled([*command, "--constraint", str(LOCK)], wanted + "\n")
        others = names.keys() | {normal(name) for name, _ in _pins(CUDA_LOCK)}
        _write(path, [block for block in with_these if _name(block) not in others], {})
    for name in TOOLS:
        folder = ROOT / "supply_chain"
        _write(folder / f"{name}.lock", _compiled(command, (folder / f"{name}.in").read_text()), {})


def _pins(path: Path) -> list[tuple[str, str]]:
    lines = [line.rstrip("\\ ") for line in path.read_text().splitlines() if "==" in line and not line.startswith("#")]
    return [(name, version) for name, version in (line.split("==") for line in lines)]


def _compiled(command: Sequence[str], wanted: str) -> list[list[str]]:
    """The blocks of lines that the compiler makes of these requirements, one a package."""
    with tempfile.TemporaryDirectory() as folder:
        source, target = Path(folder) / "wanted.txt", Path(folder) / "locked.txt"
        source.write_text(wanted)
        subprocess.run([*command, "--output-file", str(target), str(source)], check=True, stdout=subprocess.DEVNULL)
        blocks: list[list[str]] = []
        for line in target.read_text().splitlines():
            if "==" in line:
                blocks.append([])
            blocks[-1].append(line)
        return blocks


def _name(block: Sequence[str]) -> str:
    return normal(block[0].split("==")[0])


def _write(path: Path, blocks: Sequence[Sequence[str]], spelling: dict[str, str]) -> None:
    """Under the comments that the file begins with, and with names spelt as they were."""
    lines = [line for line in path.read_text().splitlines() if line.startswith("#")]
    for first, *hashes in blocks:
        name, version = first.rstrip("\\ ").split("==")
        lines.append(f"{spelling.get(normal(name), name)}=={version} \\")
        lines += [f"    --hash=sha256:{digest} \\" for digest in BESIDE_PYPI.get((name, version), ())]
        lines += hashes
    path.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main(sys.argv[1:])
