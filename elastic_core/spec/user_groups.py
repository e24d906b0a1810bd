"""The file of groups: `{"vision": ["ann", "dag:nightly"], ...}`, for logins that know users and no groups.

Read anew whenever somebody asks and the file has changed, so that a change counts at once. A file that cannot be read
is no empty file: nobody's rights are decided from it.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from elastic_core.errors import InfrastructureError

_ADAPTER = TypeAdapter(dict[str, list[str]])


@dataclass(slots=True)
class GroupsFile:
    """`path` None: there are no groups but those of the login."""

    path: Path | None
    _groups: dict[str, frozenset[str]] = field(default_factory=dict)
    _read_at: tuple[int, int] | None = None

    def of(self, user: str) -> frozenset[str]:
        """Raises `InfrastructureError` for a file that cannot be read, or is none."""
        if self.path is None:
            return frozenset()
        try:
            seen = self.path.stat()
            if self._read_at != (seen.st_mtime_ns, seen.st_size):
                told = _ADAPTER.validate_python(json.loads(self.path.read_text()), strict=True)
                self._groups = {group: frozenset(users) for group, users in told.items()}
                self._read_at = (seen.st_mtime_ns, seen.st_size)
        except OSError as error:
            raise self._unreadable(str(error.strerror)) from error
        except (ValidationError, ValueError) as error:
            raise self._unreadable(str(error)) from error
        return frozenset(group for group, users in self._groups.items() if user in users)

    def _unreadable(self, why: str) -> InfrastructureError:
        return InfrastructureError(
            f"the file of groups {self.path} (ELASTIC_GROUPS) cannot be read: {why}. It holds a JSON object of groups, "
            'each with its users: {"vision": ["ann", "bob"]}'
        )
