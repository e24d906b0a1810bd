"""Parquet files in a folder or an S3 bucket as a data set; a block is a row group.

Only footers are read to begin with, then the wanted columns of whole row groups, by ranges through the same store layer
as checkpoints: with its timeouts, its retries, its errors. Decoding is pyarrow's.

    class Mine(Task):
        def dataset(self):
            return ParquetFiles("s3://bucket/train", ["image", "label"], window=16, transform=decode)
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from elastic_core.errors import UserError
from elastic_core.state.stores.ranged_file import open_ranged
from elastic_core.state.stores.store import Entry
from elastic_core.state.stores.store_urls import open_store
from elastic_core.train.blocks import BlockDataset

Row = dict[str, Any]

_SUFFIX = ".parquet"
_READERS = 16  # footers read at once


@dataclass(frozen=True)
class _File:
    entry: Entry
    footer: pq.FileMetaData


class ParquetFiles(BlockDataset):
    """Rows as mappings from column to value: NumPy scalars, arrays for fixed-size lists, Python's objects for the rest.

    `url`: one file, or a folder or s3://bucket/prefix whose `*.parquet` files, at any depth, are taken sorted by their
    names; names that begin with '_' or '.' are not data. `columns`: those to read, all by default. `transform`: row to
    sample. `endpoint`: the S3 server, by default where `AWS_ENDPOINT_URL_S3` says. Raises `UserError` for files that
    are not there, not parquet, or differ in their columns; `InfrastructureError`.
    """

    def __init__(
        self,
        url: str,
        columns: Sequence[str] | None = None,
        *,
        window: int = 16,
        transform: Callable[[Row], Any] | None = None,
        endpoint: str = "",
    ) -> None:
        super().__init__(window)
        self._transform = transform
        above, _, name = url.rstrip("/").rpartition("/")
        place, prefix = (above or ".", name) if name.endswith(_SUFFIX) else (url, "")
        self._store = open_store(place, endpoint=endpoint)
        self._files = self._footers(prefix)
        self._columns = self._select_columns(columns)
        groups = [(file, number) for file in self._files for number in range(file.footer.num_row_groups)]
        self._groups = [(file, number) for file, number in groups if file.footer.row_group(number).num_rows]
        if not self._groups:
            raise UserError(f"The {len(self._files)} parquet files at {self._store.url} hold no rows.")

    @property
    def block_rows(self) -> Sequence[int]:
        return [file.footer.row_group(number).num_rows for file, number in self._groups]

    def read_block(self, number: int) -> Sequence[Any]:
        file, group = self._groups[number]
        with self._raising_user_errors(file.entry.key):
            source = open_ranged(self._store, file.entry.key, file.entry.size)
            with pq.ParquetFile(pa.PythonFile(source, "r"), metadata=file.footer, pre_buffer=True) as opened:
                table = opened.read_row_group(group, columns=self._columns, use_threads=False)
        return _Rows(table, self._transform)

    def _footers(self, prefix: str) -> list[_File]:
        entries = [entry for entry in self._store.entries(prefix) if _is_data(entry.key)]
        if not entries:
            where = f"{self._store.url}/{prefix}".rstrip("/")
            raise UserError(
                f"There is no parquet file at {where}: give a file, a folder or s3://bucket/prefix of some."
            )
        with ThreadPoolExecutor(min(_READERS, len(entries)), thread_name_prefix="footers") as pool:
            return list(pool.map(self._footer, entries))

    def _footer(self, entry: Entry) -> _File:
        with self._raising_user_errors(entry.key):
            return _File(entry, pq.read_metadata(pa.PythonFile(open_ranged(self._store, entry.key, entry.size), "r")))

    def _select_columns(self, columns: Sequence[str] | None) -> list[str]:
        first = self._files[0]
        known = first.footer.schema.to_arrow_schema()
        chosen = list(known.names if columns is None else columns)
        missing = [name for name in chosen if name not in known.names]
        if missing:
            raise UserError(f"{first.entry.key} has no columns {missing}; it has {', '.join(known.names)}.")
        for file in self._files[1:]:
            schema = file.footer.schema.to_arrow_schema()
            for name in chosen:
                column_type = schema.field(name).type if name in schema.names else "missing"
                if column_type != known.field(name).type:
                    raise UserError(
                        f"Column {name!r} is {known.field(name).type} in {first.entry.key} and {column_type} in "
                        f"{file.entry.key}: all files must agree. Rewrite the file, or name other columns."
                    )
        return chosen

    @contextmanager
    def _raising_user_errors(self, key: str) -> Iterator[None]:
        try:
            yield
        except (pa.ArrowInvalid, FileNotFoundError) as error:
            raise UserError(
                f"{key} in {self._store.url} cannot be read as parquet, or is no longer what it was when the job "
                f"started: {error}"
            ) from error


class _Rows(Sequence[Any]):
    """The rows of a table."""

    def __init__(self, table: pa.Table, transform: Callable[[Row], Any] | None) -> None:
        self._num = int(table.num_rows)
        self._columns = {name: _values(table.column(name).combine_chunks()) for name in table.column_names}
        self._transform = transform

    def __len__(self) -> int:
        return self._num

    def __getitem__(self, place: Any) -> Any:
        row = {name: values[place] for name, values in self._columns.items()}
        return row if self._transform is None else self._transform(row)


def _values(column: Any) -> Any:
    """A column by row. Numbers without gaps and lists of one length become arrays, all else a list."""
    chunk = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    kind = chunk.type
    if chunk.null_count == 0 and (pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind)):
        return np.array(chunk.to_numpy(zero_copy_only=False))  # a copy: torch wants memory that may be written
    if pa.types.is_fixed_size_list(kind) and chunk.null_count == 0:
        inner = _values(chunk.flatten())
        if isinstance(inner, np.ndarray):
            return inner.reshape(len(chunk), kind.list_size, *inner.shape[1:])
    return chunk.to_pylist()


def _is_data(key: str) -> bool:
    return key.endswith(_SUFFIX) and not any(part.startswith(("_", ".")) for part in key.split("/"))
