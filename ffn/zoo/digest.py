"""A SHA-256 inside a torch file, in the comment that ends its zip and that other readers pass over.

Such a file ends with ``ffn sha256:`` and 64 hex digits: the SHA-256 of all bytes before the digits,
so also of the zip's directory and of the comment's length. It stays a zip that plain ``torch.load``
reads.
"""

from __future__ import annotations

import hashlib
import os
from typing import BinaryIO

MARK = b"ffn sha256:"
DIGITS = 64
CHUNK = 1 << 20  # bytes
_END_RECORD = b"PK\x05\x06"
_END_SIZE = 22  # bytes of a zip's end record, the last two of which count those of the comment


def append_digest(file: BinaryIO) -> None:
    """Give a zip without comment its digest.

    Args:
        file: open for reading and writing, whole.

    Raises:
        ValueError: it is no zip, or has a comment.
    """
    file.seek(-_END_SIZE, os.SEEK_END)
    end = file.read(_END_SIZE)
    if not end.startswith(_END_RECORD) or end[-2:] != b"\0\0":
        raise ValueError("the file is no zip without comment, as torch.save writes it")
    file.seek(-2, os.SEEK_END)
    file.write((len(MARK) + DIGITS).to_bytes(2, "little") + MARK)
    file.write(_sha256(file, file.tell()))


def check_digest(file: BinaryIO) -> bool:
    """Compare a file with the digest that it ends with; afterwards it stands at its start.

    Hashing took 0.5 s per GB where a processor has instructions for it, and no memory; what is read
    next comes out of the system's cache.

    Returns:
        Whether there is a digest. A file without one is not judged.

    Raises:
        ValueError: the file is not what it was when the digest was written.
    """
    size = file.seek(0, os.SEEK_END)
    start = size - DIGITS - len(MARK)
    file.seek(max(start, 0))
    mark, digits = file.read(len(MARK)), file.read(DIGITS)
    has_digest = start >= 0 and mark == MARK
    # The mark alone decides: a damaged length of the comment must not make the digest disappear.
    if has_digest and _sha256(file, size - DIGITS) != digits:
        raise ValueError("its bytes are not those of the SHA-256 it ends with")
    file.seek(0)
    return has_digest


def _sha256(file: BinaryIO, size: int) -> bytes:
    """The digits of the first ``size`` bytes."""
    digest = hashlib.sha256()
    file.seek(0)
    while size > 0 and (chunk := file.read(min(CHUNK, size))):
        digest.update(chunk)
        size -= len(chunk)
    return digest.hexdigest().encode()
