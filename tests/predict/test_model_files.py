"""Files of learnt models: plain data comes back, and what is damaged, too large or something else is refused."""

from __future__ import annotations

import zipfile
from pathlib import Path

import pytest

from elastic_core.errors import UserError
from elastic_core.predict import model_files


def test_plain_data_comes_back(tmp_path: Path) -> None:
    model_files.write({"format": 1, "words": ["a", "b"]}, tmp_path / "model.skops")
    assert model_files.read(tmp_path / "model.skops", ()) == {"format": 1, "words": ["a", "b"]}


def test_a_file_that_unpacks_to_more_than_the_limit_is_refused_unread(tmp_path: Path) -> None:
    path = tmp_path / "model.skops"
    model_files.write({"format": 1}, path)
    with zipfile.ZipFile(path, "a", zipfile.ZIP_DEFLATED) as archive, archive.open("bomb.npy", "w") as member:
        for _ in range(65):
            member.write(bytes(1 << 20))
    assert path.stat().st_size < 1 << 20
    with pytest.raises(UserError, match=r"has 68\d{6} bytes, packed or unpacked, and was not loaded"):
        model_files.read(path, ())


@pytest.mark.parametrize("content", [b"", b"no zip", b"PK\x03\x04" + bytes(100)])
def test_what_is_no_archive_is_refused_in_words(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "model.skops").write_bytes(content)
    with pytest.raises(UserError, match="cannot be read as a skops file"):
        model_files.read(tmp_path / "model.skops", ())
