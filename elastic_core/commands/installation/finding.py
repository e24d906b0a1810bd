"""What `elastic doctor` says of one thing that it looked at."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Verdict(StrEnum):
    OK = "ok"
    WARN = "warn"  # works, and will not for long or not as meant
    FAIL = "fail"


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    check: str
    verdict: Verdict
    says: str
    do: str = ""  # what mends it
