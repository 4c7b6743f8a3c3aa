"""The files of a clip store: names, manifest and index, and how to read and write them.

    store.json        manifest: options, shards and index; written last
    index-00001.bin   one row per clip, the keys, and a hash table of the keys
    shard-00000.bin   clips, one after another; a clip is a header and its frames

`docs/clip_store.md` describes every byte. All numbers are little-endian.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ffn.files import atomic_write

KIND, VERSION = "ffn clip store", 1
MANIFEST = "store.json"
MAGIC = b"ffnclip\x01"  # first 8 bytes of the index and of every shard
FORMATS = ("jpeg", "raw")
SEVERAL = -1  # label of a clip whose list has several per video; readers take labels from lists

CLIP = np.dtype(
    [
        ("offset", "<u8"),  # of the clip's first byte in its shard, a multiple of 8
        ("bytes", "<u8"),  # of header and frames
        ("start", "<f8"),  # of the record's time range in seconds; NaN: none
        ("end", "<f8"),
        ("fps", "<f8"),  # mean frames per second; 0 if unknown
        ("key_offset", "<u8"),  # in the keys
        ("key_bytes", "<u4"),
        ("shard", "<u4"),
        ("label", "<i4"),
        ("frames", "<u4"),
        ("width", "<u4"),
        ("height", "<u4"),
        ("crc", "<u4"),  # zlib.crc32 of the header, which holds those of the frames
        ("timed", "<u4"),  # 1 if the header holds times of the frames
    ]
)


class StoreError(ValueError):
    """A clip store that cannot be read, or that does not match the request."""


class RangesIgnoredError(OSError):
    """A server that answers a request for a range with the whole file."""


class WrongLengthError(OSError):
    """A file of another length than `store.json` says."""


@dataclass(frozen=True)
class File:
    """A file of a store: name, length in bytes, and SHA-256 in hexadecimal."""

    name: str
    bytes: int
    sha256: str


class Unreadable(NamedTuple):
    """A video that could not be packed: key, requested time range in seconds, and cause."""

    key: str
    start: float | None
    end: float | None
    reason: str


@dataclass
class Manifest:
    """The content of `store.json`.

    Attributes:
        format: Format of the frames, `jpeg` or `raw`. Its key in the file is `form`.
        short_side: Larger videos were downscaled to this shorter side, in pixels.
        quality: JPEG quality, 1 to 100; None for raw frames.
        clips: Number of clips.
        frames: Number of frames of all clips.
        generation: Number of times that clips were added; part of the index's name.
        index: The index.
        shards: The shards, by number.
        unreadable: The videos that could not be packed.
    """

    format: str
    short_side: int
    quality: int | None
    clips: int = 0
    frames: int = 0
    generation: int = 0
    index: File | None = None
    shards: list[File] = field(default_factory=list)
    unreadable: list[Unreadable] = field(default_factory=list)

    def to_json(self) -> str:
        """The text of `store.json`."""
        values = to_disk(asdict(self))
        return json.dumps({"format": KIND, "version": VERSION, **values}, indent=1) + "\n"

    @classmethod
    def from_json(cls, text: str | bytes, where: str) -> Manifest:
        """Parse the text of `store.json`; errors name it as `where`.

        Raises:
            StoreError: if it is damaged, not a clip store, or of another version.
        """
        try:
            values: dict[str, Any] = json.loads(text)
            kind, version = values.pop("format"), values.pop("version")
        except (ValueError, AttributeError, KeyError, TypeError) as error:
            raise StoreError(
                f"{where} is damaged or not a clip store ({error}); copy it again, or pack into a "
                "new folder"
            ) from None
        if kind != KIND or version != VERSION:
            raise StoreError(
                f"{where} is a {kind!r}, version {version}; this version reads {KIND!r}, "
                f"version {VERSION}. Pack again, or use the version of ffn that wrote it"
            )
        try:
            values["format"] = values.pop("form")
            values["index"] = File(**values["index"])
            values["shards"] = [File(**shard) for shard in values["shards"]]
            values["unreadable"] = [Unreadable(*one) for one in values["unreadable"]]
            manifest = cls(**values)
        except (KeyError, TypeError, ValueError) as error:
            raise StoreError(f"{where} is damaged ({error})") from None
        manifest.check_names(where)
        return manifest

    def check_names(self, where: str) -> None:
        """Refuse file names that differ from those of the format and may leave the folder.

        Raises:
            StoreError: naming the first such file.
        """
        expected = [index_name(self.generation), *map(shard_name, range(len(self.shards)))]
        for file, name in zip([self.index, *self.shards], expected, strict=True):
            if file.name != name:
                raise StoreError(f"{where} is damaged: it names {file.name!r}; expected {name}")


def to_disk(options: dict[str, Any]) -> dict[str, Any]:
    """Options with the keys of `store.json` and of the journal: `form` for `format`.

    In `store.json` the key `format` holds the kind of file.
    """
    return {"form" if name == "format" else name: value for name, value in options.items()}


class Index:
    """The clips of a store, as memory-mapped arrays.

    Args:
        path: Local file.
        manifest: Manifest of the store.

    Attributes:
        rows: (N,) of dtype `CLIP`, in the order of packing.

    Raises:
        StoreError: if the file is missing or truncated.
    """

    def __init__(self, path: str | os.PathLike[str], manifest: Manifest) -> None:
        try:
            data = np.memmap(path, dtype=np.uint8, mode="r")
        except (OSError, ValueError) as error:
            raise StoreError(
                f"{path} is missing or cannot be read ({error}); copy the store again"
            ) from None
        count = manifest.clips
        starts = np.cumsum([len(MAGIC), CLIP.itemsize * count, 8 * count, 4 * count])
        if manifest.index is None or len(data) != manifest.index.bytes or starts[-1] > len(data):
            raise StoreError(
                f"{path} has {len(data)} bytes, unlike its entry in {MANIFEST}; copy the store "
                "again, or pack into a new folder"
            )
        clips, hashes, numbers, keys = np.split(data, starts)[1:]
        self.rows = clips.view(CLIP)
        self._hashes, self._row_numbers = hashes.view("<u8"), numbers.view("<u4")
        self._keys = keys

    def __len__(self) -> int:
        return len(self.rows)

    def key(self, row: np.void) -> str:
        """The key of a row."""
        first = int(row["key_offset"])
        return (
            self._keys[first : first + int(row["key_bytes"])]
            .tobytes()
            .decode("utf-8", "surrogateescape")
        )

    def find(self, key: str) -> list[int]:
        """Numbers of the rows with this key, one per packed time range."""
        wanted = key_hash(key)
        position, found = int(np.searchsorted(self._hashes, wanted)), []
        while position < len(self) and self._hashes[position] == wanted:
            number = int(self._row_numbers[position])
            if self.key(self.rows[number]) == key:
                found.append(number)
            position += 1
        return found

    def clips(self) -> Iterator[tuple[str, float | None, float | None]]:
        """Key and time range of every clip, in the order of the rows."""
        return ((self.key(row), *time_range(row)) for row in self.rows)


def write_clip_index(path: Path, rows: np.ndarray, keys: Sequence[str]) -> File:
    """Write an index atomically and return its entry for `store.json`.

    Args:
        path: The file.
        rows: (N,) of dtype `CLIP`; this function fills in the columns of the keys.
        keys: The key of each row.
    """
    encoded = [_encoded(key) for key in keys]
    lengths = np.array([len(key) for key in encoded], dtype=np.int64)
    rows = rows.copy()
    rows["key_bytes"], rows["key_offset"] = lengths, np.cumsum(lengths) - lengths
    hashes = np.array([key_hash(key) for key in keys], dtype="<u8")
    numbers = np.argsort(hashes, kind="stable").astype("<u4")
    parts = (rows.tobytes(), hashes[numbers].tobytes(), numbers.tobytes(), *encoded)
    data = b"".join((MAGIC, *parts))
    write_bytes(path, data)
    return File(path.name, len(data), hashlib.sha256(data).hexdigest())


def write_bytes(path: Path, data: bytes) -> None:
    """Write a file atomically and sync it to the disk."""
    with atomic_write(path, "wb", sync=True) as file:
        file.write(data)


def time_range(row: np.void) -> tuple[float | None, float | None]:
    """Start and end of a row's clip in seconds; None where the record has none."""
    start, end = float(row["start"]), float(row["end"])
    return None if np.isnan(start) else start, None if np.isnan(end) else end


def key_hash(key: str) -> np.uint64:
    """BLAKE2b of a key, with a digest of 8 bytes."""
    return np.uint64(
        int.from_bytes(hashlib.blake2b(_encoded(key), digest_size=8).digest(), "little")
    )


def _encoded(key: str) -> bytes:
    """Bytes of a key; file names may contain bytes that are not UTF-8."""
    return key.encode("utf-8", "surrogateescape")


def key_of(path: str, root: str | None) -> str:
    """Key of a video: its path relative to `root` with `/`, or the given path if it is outside."""
    if root is None:
        return path
    relative = os.path.relpath(os.path.abspath(path), os.path.abspath(root))
    outside = relative == os.pardir or relative.startswith(os.pardir + os.sep)
    return path if outside else relative.replace(os.sep, "/")


def index_name(generation: int) -> str:
    """File name of the index of a generation."""
    return f"index-{generation:05d}.bin"


def shard_name(number: int) -> str:
    """File name of a shard."""
    return f"shard-{number:05d}.bin"


def sha256_of(path: str | os.PathLike[str]) -> str:
    """SHA-256 of a file in hexadecimal."""
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()
