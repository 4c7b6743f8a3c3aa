"""The formats of the files of a clip store: manifest, index and shards.

store.json              manifest: options, counts, name and SHA-256 of the index; written last
index-0123456789ab.db   SQLite: a row per clip, per shard and per unreadable video
shard-00000.bin         clips, one after another; a clip is a header and its JPEG frames
"""

from __future__ import annotations

import os
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Literal, NamedTuple

from pydantic import BaseModel, Field, ValidationError

MANIFEST = "store.json"
SCHEMA = """
CREATE TABLE IF NOT EXISTS options (short_side INTEGER, quality INTEGER);
CREATE TABLE IF NOT EXISTS clips (
    key BLOB, start REAL, "end" REAL,  -- bytes of the path; seconds of the time range or NULL
    shard INTEGER, offset INTEGER, bytes INTEGER,  -- where header and frames are
    frames INTEGER, width INTEGER, height INTEGER,
    timed INTEGER,  -- 1 if the header holds times of the frames
    crc INTEGER  -- zlib.crc32 of the header, which holds those of the frames
);
CREATE INDEX IF NOT EXISTS clip_keys ON clips (key);
CREATE TABLE IF NOT EXISTS shards (number INTEGER PRIMARY KEY, bytes INTEGER, sha256 TEXT);
CREATE TABLE IF NOT EXISTS unreadable (key BLOB, start REAL, "end" REAL, reason TEXT);
"""


class StoreError(ValueError):
    """A clip store that cannot be read, or that does not match the request."""


class Clip(NamedTuple):
    """A row of the table `clips`; see `SCHEMA`."""

    key: bytes
    start: float | None
    end: float | None
    shard: int
    offset: int
    bytes: int
    frames: int
    width: int
    height: int
    timed: int
    crc: int


class Unreadable(NamedTuple):
    """A video that could not be packed: key, requested time range in seconds, and cause."""

    key: str
    start: float | None
    end: float | None
    reason: str


class Manifest(BaseModel, frozen=True, extra="forbid"):
    """The content of `store.json`.

    Attributes:
        kind: Of the file.
        version: Of the format.
        short_side: Larger videos were downscaled to this shorter side, in pixels.
        quality: JPEG quality, 1 to 100.
        clips: Number of clips.
        frames: Number of frames of all clips.
        bytes: Size of all shards.
        sha256: Of the index.
    """

    kind: Literal["ffn clip store"] = "ffn clip store"
    version: Literal[2] = 2
    short_side: int
    quality: int
    clips: int
    frames: int
    bytes: int
    sha256: str = Field(pattern="^[0-9a-f]{64}$")

    @property
    def index(self) -> str:
        """File name of the index."""
        return f"index-{self.sha256[:12]}.db"

    @classmethod
    def parse(cls, text: str | bytes, where: str) -> Manifest:
        """Parse the text of `store.json`; errors name it as `where`.

        Raises:
            StoreError: if it is damaged, not a clip store, or of another version.
        """
        try:
            return cls.model_validate_json(text)
        except ValidationError as error:
            first = error.errors()[0]
            cause = f"{'.'.join(map(str, first['loc']))}: {first['msg']}"
            raise StoreError(
                f"{where} is damaged or of another version ({cause}). Copy it again, or pack "
                "again into a new folder"
            ) from None


def query(index: Path, text: str, *values: object) -> list[tuple]:
    """Rows of a finished index.

    Each call opens the file anew, so that threads and forked processes never share a connection.

    Raises:
        StoreError: if the file is missing or damaged.
    """
    try:
        address = f"{index.absolute().as_uri()}?mode=ro&immutable=1"
        with closing(sqlite3.connect(address, uri=True)) as database:
            return database.execute(text, values).fetchall()
    except sqlite3.Error as error:
        raise StoreError(f"{index} is missing or damaged ({error}); copy it again") from None


def key_of(path: str, root: str | os.PathLike[str] | None) -> str:
    """Key of a video: its path relative to `root` with `/`, or the given path if it is outside."""
    if root is None:
        return path
    relative = os.path.relpath(os.path.abspath(path), os.path.abspath(root))
    outside = relative == os.pardir or relative.startswith(os.pardir + os.sep)
    return path if outside else relative.replace(os.sep, "/")


def shard_name(number: int) -> str:
    """File name of a shard."""
    return f"shard-{number:05d}.bin"
