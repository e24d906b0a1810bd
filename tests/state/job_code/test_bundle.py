"""What belongs to a job's code, and that it comes out of the archive as it went in, or not at all."""

from __future__ import annotations

import io
import zipfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elastic_core.errors import InfrastructureError, UserError
from elastic_core.state.job_code.bundle import JobCode, collect, pack, unpack, write

MOST = 1 << 20
NAMES = st.from_regex(r"[a-z]{1,6}(/[a-z]{1,6}){0,2}\.(py|npz)", fullmatch=True)
FILES = st.dictionaries(NAMES, st.binary(max_size=200), min_size=1, max_size=6)


def project(folder: Path, **files: str) -> Path:
    for name, content in files.items():
        path = folder / f"{name.replace('__', '/')}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
    return folder


def test_it_is_the_package_of_the_entry_point_with_its_data_and_what_that_imports_from_beside(tmp_path: Path) -> None:
    task = "import helper\nfrom torch import nn\nimport json, other.thing as t\n"
    helper = "from elastic_core.train.task import Task\n"
    other = {"other__init": "", "other__thing": "import third\n", "third": "", "unasked": ""}
    project(tmp_path, mine__init="", mine__deep__task=task, helper=helper, **other)
    (tmp_path / "mine" / "table.npz").write_bytes(b"numbers")
    (tmp_path / "mine" / "__pycache__").mkdir()
    (tmp_path / "mine" / "__pycache__" / "task.pyc").write_bytes(b"compiled")
    (tmp_path / "mine" / ".hidden").write_text("mine alone")
    code = collect("mine.deep.task:Task", tmp_path, MOST)
    assert code.packages == ("helper", "mine", "other", "third")
    assert {name for name in code.files if name.startswith("mine")} == {
        "mine/init.py", "mine/deep/task.py", "mine/table.npz",
    }  # fmt: skip
    assert code.files["mine/table.npz"] == b"numbers"


def test_nothing_of_it_is_imported_to_find_it(tmp_path: Path) -> None:
    project(tmp_path, mine="raise SystemExit('was imported')\n")
    assert collect("mine:Task", tmp_path, MOST).packages == ("mine",)


@pytest.mark.parametrize("entry_point", ["torch.nn:Module", "json:loads", "elastic_core.train.task:Task", "no_such:X"])
def test_what_is_installed_is_the_environment_and_no_part_of_it(tmp_path: Path, entry_point: str) -> None:
    assert not collect(entry_point, tmp_path, MOST).files


def test_code_that_is_too_large_is_refused_with_what_to_do(tmp_path: Path) -> None:
    project(tmp_path, mine__task="")
    (tmp_path / "mine" / "weights.bin").write_bytes(bytes(2000))
    with pytest.raises(UserError, match=r"mine/weights.bin.*ELASTIC_CODE_MB.*Move data out of the package"):
        collect("mine.task:Task", tmp_path, 1000)


@given(FILES)
def test_what_was_packed_is_unpacked_and_has_the_same_name_in_any_order(files: dict[str, bytes]) -> None:
    code = JobCode(files)
    assert dict(unpack(pack(code), code.sha256, MOST).files) == files
    assert JobCode(dict(reversed(files.items()))).sha256 == code.sha256


@given(FILES, st.data())
def test_no_change_of_it_goes_unseen(files: dict[str, bytes], data: st.DataObject) -> None:
    code = JobCode(files)
    changed = dict(files)
    name = data.draw(st.sampled_from(sorted(files)))
    changed[name] += b"\n"
    with pytest.raises(InfrastructureError, match="was changed in the store"):
        unpack(pack(JobCode(changed)), code.sha256, MOST)
    del changed[name]
    with pytest.raises(InfrastructureError, match="was changed in the store"):
        unpack(pack(JobCode(changed)), code.sha256, MOST)


@pytest.mark.parametrize("name", ["../above.py", "/etc/passwd", "mine/../../above.py", "mine\\..\\above.py"])
def test_files_outside_of_its_folder_are_refused_even_where_its_name_is_right(name: str) -> None:
    code = JobCode({name: b"x"})
    with pytest.raises(InfrastructureError, match="outside of its folder"):
        unpack(pack(code), code.sha256, MOST)


def test_an_archive_that_says_to_be_too_large_is_not_read() -> None:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("mine.py", bytes(2 * MOST))
    assert len(packed.getvalue()) < 10_000
    with pytest.raises(InfrastructureError, match="none of ours"):
        unpack(packed.getvalue(), "0" * 64, MOST)


@given(st.binary(max_size=300))
def test_what_is_no_archive_is_an_error_of_ours(content: bytes) -> None:
    with pytest.raises(InfrastructureError):
        unpack(content, "0" * 64, MOST)


def test_it_is_written_readable_for_workers_of_another_user(tmp_path: Path) -> None:
    write(JobCode({"mine/deep/task.py": b"x = 1\n"}), tmp_path / "code")
    assert (tmp_path / "code/mine/deep/task.py").read_bytes() == b"x = 1\n"
    assert (tmp_path / "code/mine/deep").stat().st_mode & 0o777 == 0o755
    assert (tmp_path / "code/mine/deep/task.py").stat().st_mode & 0o777 == 0o644
