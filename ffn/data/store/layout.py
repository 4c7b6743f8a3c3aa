"""What a clip store is on disk: its names, its tables, and how they are read and written.

    store.json        what the store is, its shards and its index; written last
    index-00001.bin   one row per clip, keys, and a table to find them
    shard-00000.bin   clips one after another; a clip is a head (tables) and its frames

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

FORMAT, VERSION = "ffn clip store", 1
MANIFEST = "store.json"
MAGIC = b"ffnclip\x01"  # first 8 bytes of the index and of every shard
FORMS = ("jpeg", "raw")

CLIP = np.dtype(
    [
        ("offset", "<u8"),  # of the clip's first byte in its shard, a multiple of 8
        ("bytes", "<u8"),  # of head and frames
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
        ("crc", "<u4"),  # zlib.crc32 of the head, which holds those of the frames
        ("timed", "<u4"),  # 1 if the head holds times of the frames
    ]
)


class StoreError(ValueError):
    """A clip store that cannot be used as a whole, or not in the way asked for."""


@dataclass(frozen=True)
class File:
    """A file of a store: its name, its length in bytes and its SHA-256 in hex digits."""

    name: str
    bytes: int
    sha256: str


class Unreadable(NamedTuple):
    """A video that could not be packed, the part that was asked for in seconds, and why."""

    key: str
    start: float | None
    end: float | None
    reason: str


@dataclass
class Manifest:
    """What `store.json` says.

    Attributes:
        form: `jpeg` or `raw`.
        short_side: Videos with a longer one were made smaller to it, in pixels.
        quality: Of the JPEGs, 1 to 100; None for raw frames.
        clips: Number of clips.
        frames: Number of frames of all clips.
        generation: How often clips were added; the index carries it in its name.
        index: The index.
        shards: In the order of their numbers.
        unreadable: The videos that could not be packed.
    """

    form: str
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
        return json.dumps({"format": FORMAT, "version": VERSION, **asdict(self)}, indent=1) + "\n"

    @classmethod
    def from_json(cls, text: str | bytes, where: str) -> Manifest:
        """Read the text of `store.json`; `where` names it in errors.

        Raises:
            StoreError: if it is damaged, of something else, or of another version.
        """
        try:
            values: dict[str, Any] = json.loads(text)
            kind, version = values.pop("format"), values.pop("version")
        except (ValueError, AttributeError, KeyError, TypeError) as error:
            raise StoreError(f"{where} is damaged or of no clip store ({error})") from None
        if kind != FORMAT or version != VERSION:
            raise StoreError(
                f"{where} is of a {kind!r}, version {version}; this ffn reads {FORMAT!r}, "
                f"version {VERSION}: pack again, or use the ffn that wrote it"
            )
        try:
            values["index"] = File(**values["index"])
            values["shards"] = [File(**shard) for shard in values["shards"]]
            values["unreadable"] = [Unreadable(*one) for one in values["unreadable"]]
            manifest = cls(**values)
        except (KeyError, TypeError, ValueError) as error:
            raise StoreError(f"{where} is damaged ({error})") from None
        manifest.check_names(where)
        return manifest

    def check_names(self, where: str) -> None:
        """Refuse names that the format does not give, which may lead out of the folder.

        Raises:
            StoreError: naming the first such.
        """
        expected = [index_name(self.generation), *map(shard_name, range(len(self.shards)))]
        for file, name in zip([self.index, *self.shards], expected, strict=True):
            if file.name != name:
                raise StoreError(f"{where} is damaged: it names {file.name!r} in place of {name}")


class Index:
    """The clips of a store: arrays that are mapped into memory, not Python objects.

    Args:
        path: Local file.
        manifest: Of the store.

    Attributes:
        rows: (N,) of dtype `CLIP`, in the order in which the clips were packed.

    Raises:
        StoreError: if the file is missing or cut short.
    """

    def __init__(self, path: str | os.PathLike[str], manifest: Manifest) -> None:
        try:
            data = np.memmap(path, dtype=np.uint8, mode="r")
        except (OSError, ValueError) as error:
            raise StoreError(f"{path} is missing or cannot be read ({error})") from None
        count = manifest.clips
        starts = np.cumsum([len(MAGIC), CLIP.itemsize * count, 8 * count, 4 * count])
        if manifest.index is None or len(data) != manifest.index.bytes or starts[-1] > len(data):
            raise StoreError(f"{path} has {len(data)} bytes; {MANIFEST} says otherwise")
        clips, hashes, places, keys = np.split(data, starts)[1:]
        self.rows = clips.view(CLIP)
        self._hashes, self._places = hashes.view("<u8"), places.view("<u4")
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
        """Numbers of the rows with this key: one for each time range that was packed."""
        wanted = key_hash(key)
        place, found = int(np.searchsorted(self._hashes, wanted)), []
        while place < len(self) and self._hashes[place] == wanted:
            number = int(self._places[place])
            if self.key(self.rows[number]) == key:
                found.append(number)
            place += 1
        return found

    def clips(self) -> Iterator[tuple[str, float | None, float | None]]:
        """Key and time range of every clip, in the order of the rows."""
        return ((self.key(row), *time_range(row)) for row in self.rows)


def write_index(path: Path, rows: np.ndarray, keys: Sequence[str]) -> File:
    """Write an index and return what `store.json` has to say of it.

    Args:
        path: The file, which appears complete or not at all.
        rows: (N,) of dtype `CLIP`; the columns of the keys are filled in here.
        keys: Of the rows.
    """
    encoded = [_encoded(key) for key in keys]
    lengths = np.array([len(key) for key in encoded], dtype=np.int64)
    rows = rows.copy()
    rows["key_bytes"], rows["key_offset"] = lengths, np.cumsum(lengths) - lengths
    hashes = np.array([key_hash(key) for key in keys], dtype="<u8")
    places = np.argsort(hashes, kind="stable").astype("<u4")
    parts = (rows.tobytes(), hashes[places].tobytes(), places.tobytes(), *encoded)
    data = b"".join((MAGIC, *parts))
    write_file(path, data)
    return File(path.name, len(data), hashlib.sha256(data).hexdigest())


def time_range(row: np.void) -> tuple[float | None, float | None]:
    """Start and end of a row's clip in seconds, None where the record has none."""
    start, end = float(row["start"]), float(row["end"])
    return None if np.isnan(start) else start, None if np.isnan(end) else end


def key_hash(key: str) -> np.uint64:
    """First 8 bytes of the BLAKE2b of a key."""
    return np.uint64(
        int.from_bytes(hashlib.blake2b(_encoded(key), digest_size=8).digest(), "little")
    )


def _encoded(key: str) -> bytes:
    """Bytes of a key; names of files need not be UTF-8."""
    return key.encode("utf-8", "surrogateescape")


def key_of(path: str, root: str | None) -> str:
    """How a store calls a video: its path from `root` with `/`, or the path itself elsewhere."""
    if root is None:
        return path
    relative = os.path.relpath(os.path.abspath(path), os.path.abspath(root))
    outside = relative == os.pardir or relative.startswith(os.pardir + os.sep)
    return path if outside else relative.replace(os.sep, "/")


def index_name(generation: int) -> str:
    """Name of the index after so many packings."""
    return f"index-{generation:05d}.bin"


def shard_name(number: int) -> str:
    """Name of a shard."""
    return f"shard-{number:05d}.bin"


def sha256_of(path: str | os.PathLike[str]) -> str:
    """SHA-256 of a file, in hex digits."""
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def write_file(path: Path, data: bytes) -> None:
    """Write a file that appears under its name complete and synced, or not at all."""
    part = path.with_name(f"{path.name}.part")
    with part.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    os.replace(part, path)
    sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Have the names in a folder survive a loss of power, where the system can do that."""
    if os.name != "posix":
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
