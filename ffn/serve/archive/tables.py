"""Write large tables of predictions piece by piece, as CSV or Parquet."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol

from ffn.files import atomic_write, printable

SUFFIXES = (".csv", ".parquet")


class TableFile(Protocol):
    """A table that is written; its file exists when it is closed."""

    def write(self, rows: Sequence[Sequence[Any]]) -> None:
        """Append rows; None is an empty cell."""

    def close(self) -> None:
        """Complete the file."""

    def abort(self) -> None:
        """Remove what was written; the file keeps its earlier content."""


def open_table(path: Path, columns: Sequence[str]) -> TableFile:
    """Open a table for writing; the suffix of the file says in which format.

    Raises:
        ValueError: another suffix, or features in a CSV file.
        ImportError: pyarrow, for Parquet, is not installed.
        OSError: the file cannot be written.
    """
    kind = path.suffix.lower()
    if kind not in SUFFIXES:
        raise ValueError(f"the table is {path}; expected a file *{' or *'.join(SUFFIXES)}")
    if kind == ".csv" and "features" in columns:
        raise ValueError(f"the table is {path}; features need a file *.parquet")
    return (_Csv if kind == ".csv" else _Parquet)(path, columns)


class _Csv:
    def __init__(self, path: Path, columns: Sequence[str]) -> None:
        self._context = atomic_write(path)
        self._file = self._context.__enter__()
        self.write([columns])

    def write(self, rows: Sequence[Sequence[Any]]) -> None:
        text = io.StringIO()
        csv.writer(text, lineterminator="\n").writerows(rows)
        self._file.write(text.getvalue().encode("utf-8", "surrogateescape"))

    def close(self) -> None:
        self._context.__exit__(None, None, None)

    def abort(self) -> None:
        _abort(self._context)


class _Parquet:
    def __init__(self, path: Path, columns: Sequence[str]) -> None:
        try:
            import pyarrow as pa
            from pyarrow import parquet
        except ImportError as error:
            raise ImportError(
                f'the table {path} needs pyarrow: pip install "frame-flexible[parquet]", or write '
                "a .csv file"
            ) from error
        kinds = {
            **dict.fromkeys(("start", "end"), pa.float64()),
            **dict.fromkeys(("frames", "sub_network"), pa.int32()),
            "features": pa.list_(pa.float32()),
        }
        self._schema = pa.schema(
            [
                (name, kinds.get(name, pa.float32() if "probability" in name else pa.string()))
                for name in columns
            ]
        )
        self._context = atomic_write(path)
        self._writer = parquet.ParquetWriter(self._context.__enter__(), self._schema)
        self._rows: list[Sequence[Any]] = []

    def write(self, rows: Sequence[Sequence[Any]]) -> None:
        self._rows += rows
        if len(self._rows) >= 10_000:
            self._flush()

    def close(self) -> None:
        self._flush()
        self._writer.close()
        self._context.__exit__(None, None, None)

    def abort(self) -> None:
        self._writer.close()
        _abort(self._context)

    def _flush(self) -> None:
        import pyarrow as pa

        texts = [
            [printable(cell) if isinstance(cell, str) else cell for cell in row]
            for row in self._rows
        ]
        columns = zip(*texts, strict=True) if texts else [[]] * len(self._schema)
        arrays = [
            pa.array(list(column), field.type)
            for column, field in zip(columns, self._schema, strict=True)
        ]
        self._writer.write_table(pa.table(arrays, schema=self._schema))
        self._rows = []


class _Abort(Exception):
    """Ends an atomic write without a file."""


def _abort(context: Any) -> None:
    with suppress(_Abort):
        context.__exit__(_Abort, _Abort(), None)
