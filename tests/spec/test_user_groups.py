from __future__ import annotations

import os
from pathlib import Path

import pytest

from elastic_core.errors import InfrastructureError
from elastic_core.spec.user_groups import GroupsFile


def test_a_change_of_the_file_counts_at_once(tmp_path: Path) -> None:
    file = tmp_path / "groups.json"
    file.write_text('{"vision": ["ann", "dag:nightly"], "leads": ["ann"]}')
    groups = GroupsFile(file)
    assert groups.of("ann") == {"vision", "leads"}
    assert groups.of("dag:nightly") == {"vision"}
    assert groups.of("ben") == frozenset()
    file.write_text('{"vision": ["ben"]}')
    os.utime(file, (1, 1))
    assert (groups.of("ann"), groups.of("ben")) == (frozenset(), {"vision"})


def test_without_a_file_nobody_is_in_a_group_of_it() -> None:
    assert GroupsFile(None).of("ann") == frozenset()


@pytest.mark.parametrize(
    ("text", "said"),
    [(None, "No such file"), ("{", "Expecting property"), ('{"vision": "ann"}', "valid list"), ("[]", "valid dict")],
)
def test_a_file_that_cannot_be_read_is_a_fault_and_no_empty_file(tmp_path: Path, text: str | None, said: str) -> None:
    file = tmp_path / "groups.json"
    groups = GroupsFile(file)
    file.write_text('{"vision": ["ann"]}')
    assert groups.of("ann") == {"vision"}
    if text is None:
        file.unlink()
    else:
        file.write_text(text)
    with pytest.raises(InfrastructureError, match=said) as unreadable:
        groups.of("ann")
    assert 'JSON object of groups, each with its users: {"vision": ["ann", "bob"]}' in str(unreadable.value)
