"""Learnt models in files: skops, which loads only types that it was told of. Never pickle: loading one runs its code.

A file is plain data, arrays and scikit-learn estimators. Whoever loads it names the types that it trusts, one by one; a
file with anything else in it is refused with the names of what it holds. What the content has to be is the caller's.
"""

from __future__ import annotations

import os
import zipfile
from collections.abc import Collection
from pathlib import Path
from typing import Any

import skops.io

from elastic_core.errors import UserError

MOST_BYTES = 64 << 20  # of a file, and of what is in it when unpacked


def write(content: dict[str, Any], path: Path) -> None:
    """Whole or not at all: written beside and renamed."""
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    skops.io.dump(content, beside)
    os.replace(beside, path)


def read(path: Path, trusted: Collection[str]) -> Any:
    """Raises `UserError` for what is no skops file, is damaged or too large, or holds types beyond skops's own and
    `trusted`."""
    try:
        _check_size(path)
        unknown = sorted(set(skops.io.get_untrusted_types(file=path)) - set(trusted))
    except UserError:
        raise
    except Exception as error:  # zip, JSON and key errors alike: it is no skops file
        raise UserError(f"{path} cannot be read as a skops file: {error}") from error
    if unknown:
        raise UserError(f"{path} holds types that are not trusted and was not loaded: {', '.join(unknown)}")
    try:
        return skops.io.load(path, trusted=list(trusted))
    except Exception as error:  # a damaged member of an intact zip
        raise UserError(f"{path} cannot be loaded: {error}") from error


def _check_size(path: Path) -> None:
    """By what the file says of itself, before anything of it is unpacked."""
    with zipfile.ZipFile(path) as archive:
        unpacked = sum(member.file_size for member in archive.infolist())
    largest = max(path.stat().st_size, unpacked)
    if largest > MOST_BYTES:
        raise UserError(f"{path} has {largest} bytes, packed or unpacked, and was not loaded: {MOST_BYTES} are allowed")
