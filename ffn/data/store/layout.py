"""The files of a clip store: manifest, index and shards, in a folder or at an address.

store.json              manifest: options, counts, name and SHA-256 of the index; written last
index-0123456789ab.db   SQLite: a row per clip, per shard and per unreadable video
shard-00000.bin         clips, one after another; a clip is a header and its JPEG frames
"""

from __future__ import annotations

import os
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any, Literal, NamedTuple

from filelock import FileLock
from pydantic import BaseModel, Field, ValidationError

from ffn.files import atomic_write, sha256_of

MANIFEST = "store.json"
TIMEOUT = 60  # seconds without data, of http
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


class Files:
    """The files of a store, in a local folder or at an address that fsspec opens.

    The index and each shard at an address, such as https:// or s3://, are downloaded whole on first
    use, compared with their SHA-256, and kept in a folder that many processes share.

    Args:
        name: Folder or address of the store.
        cache: Folder of the downloads.
    """

    def __init__(self, name: str, cache: Path) -> None:
        self.name, self.cache = name, cache

    def manifest(self) -> bytes:
        """The content of `store.json`.

        Raises:
            StoreError: if it does not exist, or cannot be downloaded.
        """
        try:
            if "://" in self.name:
                return _file_system(self.name).cat_file(f"{self.name}/{MANIFEST}")
            return Path(self.name, MANIFEST).read_bytes()
        except Exception as error:  # each file system has its own classes
            raise StoreError(
                f"{self.name} holds no finished clip store: {MANIFEST} cannot be read "
                f"({_message(error)}); run ffn pack"
            ) from None

    def path(self, name: str, sha256: str) -> Path:
        """Path of the index or of a shard; of an address, in the cache.

        Raises:
            OSError: if it cannot be downloaded, or has another SHA-256 than the store says.
        """
        if "://" not in self.name:
            return Path(self.name, name)
        path = self.cache / f"{sha256[:16]}-{name}"
        if not path.exists():
            self.cache.mkdir(parents=True, exist_ok=True)
            with FileLock(f"{path}.lock"):
                if not path.exists():
                    _download(f"{self.name}/{name}", sha256, path)
        return path


def _download(address: str, sha256: str, path: Path) -> None:
    with atomic_write(path) as target:
        try:
            _file_system(address).get_file(address, target.name)
        except Exception as error:
            raise OSError(f"{address} cannot be downloaded ({_message(error)})") from None
        found = sha256_of(target.name)
        if found != sha256:
            raise OSError(
                f"{address} has the SHA-256 {found[:16]}…, the store says {sha256[:16]}…; copy "
                "the store again, or open it again if it has been packed again"
            )


def _file_system(address: str) -> Any:
    """The file system of fsspec for an address."""
    import fsspec

    options = {}
    if address.startswith("http"):
        from aiohttp import ClientTimeout  # an ImportError names the missing package

        # The default limits a whole download to five minutes.
        timeout = ClientTimeout(total=None, sock_connect=TIMEOUT, sock_read=TIMEOUT)
        options = {"client_kwargs": {"timeout": timeout}}
    return fsspec.core.url_to_fs(address, **options)[0]


def _message(error: Exception) -> str:
    if isinstance(error, ImportError):
        return f"{error}; pip install 'frame-flexible[store]'"
    return f"{type(error).__name__}: {error}"


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
