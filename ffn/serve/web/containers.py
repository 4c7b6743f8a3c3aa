"""Recognize the container of a video file by its first bytes.

A service opens files of unknown origin. Some formats that FFmpeg reads are lists of other files or
addresses (HLS, DASH, concat), which a service must not open; so only these containers are accepted.
"""

from __future__ import annotations

HEAD_BYTES = 512  # of a file that `container_of` needs
ACCEPTED = "MP4, MOV, WebM, MKV, AVI, GIF, FLV, WMV, Ogg, MPEG-PS, MPEG-TS"

_AT_START = {
    b"\x1a\x45\xdf\xa3": "Matroska",  # WebM, MKV
    b"GIF87a": "GIF",
    b"GIF89a": "GIF",
    b"FLV\x01": "FLV",
    b"\x30\x26\xb2\x75\x8e\x66\xcf\x11": "ASF",  # WMV
    b"OggS": "Ogg",
    b"\x00\x00\x01\xba": "MPEG-PS",
}
# Types of the first box of an ISO file or an old QuickTime file.
_BOXES = (b"ftyp", b"moov", b"mdat", b"wide", b"free", b"skip", b"pnot")
_TS_PACKETS = {188: 0, 192: 4}  # length of a packet, place of its first byte 0x47


def container_of(head: bytes) -> str | None:
    """The container of a file, from its first `HEAD_BYTES` bytes; None if it is another one."""
    for start, name in _AT_START.items():
        if head.startswith(start):
            return name
    if head[4:8] in _BOXES:
        return "MP4"
    if head[:4] == b"RIFF" and head[8:12] == b"AVI ":
        return "AVI"
    for length, first in _TS_PACKETS.items():
        if head[first::length][:2] == b"\x47\x47":
            return "MPEG-TS"
    return None
