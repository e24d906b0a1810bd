"""Which code a figure is of: the commit that is checked out."""

from __future__ import annotations

import subprocess
from pathlib import Path

ROOT = Path(__file__).parents[2]


def commit() -> str:
    """Its first digits, with a + where the code is not that commit's."""
    head = _git("rev-parse", "--short=12", "HEAD")
    return f"{head}+" if _git("status", "--porcelain", "--", "elastic_core", "plugins", "benchmarks") else head


def _git(*arguments: str) -> str:
    done = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=True)
    return done.stdout.strip()
