"""Read parts of the shards of a remote store by range requests, without downloading the shards.

Spans that are close to each other are merged into one request, and several requests run
concurrently. The checksum of every span is compared, because no SHA-256 covers it.
"""

from __future__ import annotations

import time
import warnings
import zlib
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from itertools import chain

from ffn.data.store import remote
from ffn.data.store.cache import RemoteFiles
from ffn.data.store.layout import File, RangesIgnoredError, WrongLengthError
from ffn.data.store.shards import ChecksumError, OpenShards, Span

GAP = 1 << 15  # bytes; a request takes less time than reading over a larger gap
CONCURRENT = 16  # requests
REQUEST_BYTES = 1 << 22  # of merged spans; a larger span is a request of its own
GROUP_BYTES = 1 << 25  # of the requests that run concurrently
SPAN_BYTES = 1 << 30  # a frame of 8K as RGB has 100 MB
HEADERS = 256  # that are kept in memory
HEADER_BYTES = 1 << 18  # longer ones, of more than 13,107 frames, are read again


class RangedShards(OpenShards):
    """Shards of which the requested parts are fetched; a shard in the cache is read from there.

    If the server ignores ranges, whole shards are downloaded, with a warning.

    Args:
        files: The files of the store.
        shards: All shards of the store, by number.
    """

    gap = GAP  # of merged spans

    def __init__(self, files: RemoteFiles, shards: list[File]) -> None:
        super().__init__(files, shards)
        self._headers: OrderedDict[tuple[int, Span], bytes] = OrderedDict()
        self._ignored = False  # whether the server ignores ranges

    def read(self, number: int, spans: Sequence[Span], *, check: bool) -> Iterator[bytearray]:
        """Read parts of a shard, one after another; their checksums are always compared.

        Args:
            number: Number of the shard.
            spans: The parts, in ascending order.
            check: Compare the checksums also if the shard is read from the cache.

        Raises:
            ChecksumError: if a checksum differs after several attempts.
            OSError: if a request fails after several attempts.
            EOFError: if a shard in the cache is too short.
        """
        done = 0
        for group in _groups(spans, self.gap):
            if not self._uses_ranges(number):
                break
            pieces = self._fetch(self.shards[number], group)
            for span in group:
                piece = pieces.pop(span)
                if isinstance(piece, RangesIgnoredError):
                    self._warn(piece)
                    break
                if isinstance(piece, OSError):
                    raise self._explained(piece)
                yield piece
                done += 1
        yield from super().read(number, spans[done:], check=check)

    def read_header(self, number: int, span: Span) -> bytes:
        """Read the header of a clip, and keep it in memory if it is short; raises as `read`."""
        key = number, span
        header = self._headers.get(key)
        if header is None:
            header = super().read_header(number, span)
            with self._lock():
                if len(header) <= HEADER_BYTES:
                    self._headers[key] = header
                if len(self._headers) > HEADERS:
                    self._headers.popitem(last=False)
        return header

    def _uses_ranges(self, number: int) -> bool:
        return not self._ignored and not self.files.holds(self.shards[number])

    def _fetch(self, shard: File, spans: Sequence[Span]) -> dict[Span, bytearray | OSError]:
        """The bytes of each span, or the error of the last attempt."""
        address, found = f"{self.files.name}/{shard.name}", {}
        left = list(spans)
        for attempt in range(remote.ATTEMPTS):
            time.sleep(remote.PAUSE * attempt)
            requests = _merged(left, self.gap)
            places = [(request[0].offset, request[-1].end) for request in requests]
            answers = remote.fetch_ranges(address, places, shard.bytes)
            for request, answer in zip(requests, answers, strict=True):
                found |= {span: _cut(answer, request[0].offset, span) for span in request}
            left = [span for span in left if _may_succeed(found[span])]
            if not left:
                break
        return found

    def _warn(self, error: RangesIgnoredError) -> None:
        self._ignored = True
        warnings.warn(
            f"{self.files.name} does not support range requests ({error}); whole shards are "
            f"downloaded to {self.files.cache}",
            stacklevel=2,
        )

    def _explained(self, error: OSError) -> OSError:
        """An error that says whether the store has been replaced."""
        signs = (ChecksumError, FileNotFoundError, WrongLengthError)
        if not isinstance(error, signs) or not self.files.has_changed():
            return error
        remedy = "store.json has changed since it was opened; open the store again"
        if isinstance(error, FileNotFoundError):
            return OSError(f"the shard is missing; {remedy}")
        return type(error)(f"{error}; {remedy}")


def _groups(spans: Sequence[Span], gap: int) -> Iterator[list[Span]]:
    """The spans, divided into those that are fetched concurrently."""
    group: list[list[Span]] = []
    size = 0
    for request in _merged(spans, gap):
        length = request[-1].end - request[0].offset
        if group and (len(group) == CONCURRENT or size + length > GROUP_BYTES):
            yield list(chain(*group))
            group, size = [], 0
        group.append(request)
        size += length
    if group:
        yield list(chain(*group))


def _merged(spans: Sequence[Span], gap: int) -> list[list[Span]]:
    """The spans of each request; spans are ascending."""
    requests: list[list[Span]] = []
    for span in spans:
        if span.size > SPAN_BYTES:
            raise OSError(
                f"{span.size:,} bytes are one part; at most {SPAN_BYTES:,} are read by a range "
                "request. Use access='shards'"
            )
        if requests:
            first, last = requests[-1][0], requests[-1][-1]
            if span.offset - last.end <= gap and span.end - first.offset <= REQUEST_BYTES:
                requests[-1].append(span)
                continue
        requests.append([span])
    return requests


def _cut(answer: bytes | OSError, start: int, span: Span) -> bytearray | OSError:
    """The bytes of a span from an answer that begins at `start`, if their checksum is right."""
    if isinstance(answer, OSError):
        return answer
    piece = bytearray(memoryview(answer)[span.offset - start : span.end - start])
    if zlib.crc32(piece) != span.crc:
        return ChecksumError()
    return piece


def _may_succeed(piece: bytearray | OSError) -> bool:
    """Whether another attempt may give the bytes."""
    final = (FileNotFoundError, RangesIgnoredError)
    return isinstance(piece, OSError) and not isinstance(piece, final)
