"""Fetch one file over http(s): resumed, also by a later process, and never mixed from two versions.

A part of a file is continued only if the server confirms that its file is still the same: the ETag
or date of the first answer is kept in ``….version`` next to the part and sent as ``If-Range`` (RFC
9110, §13.1.5). Without either, a part is continued only if the hash of the file will be checked.
"""

from __future__ import annotations

import errno
import http.client
import re
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from ffn.files import explain, write_text
from ffn.limits import DOWNLOAD_BYTES
from ffn.zoo.records import WeightsError

ATTEMPTS = 5  # in a row without a new byte, before giving up
REQUESTS = 200  # in all
TIMEOUT = 30  # seconds without a byte
PAUSE = 1.0  # seconds before the second attempt, doubled for each further one
LONGEST_PAUSE = 60.0  # that a server may ask for
CHUNK = 1 << 20  # bytes
TEMPORARY = (408, 429)  # besides 5xx: timeout, too many requests
# Errors of the disk that is written to, not of the connection: a new attempt has the same error.
DISK_ERRORS = (
    errno.ENOSPC,
    errno.EDQUOT,
    errno.EFBIG,
    errno.EIO,
    errno.EROFS,
    errno.EACCES,
    errno.EISDIR,
    errno.ENOTDIR,
)

Report = Callable[[int, int | None], None]  # takes the bytes so far, and in all


@dataclass(frozen=True)
class WebFile:
    """A file at an http(s) address.

    Attributes:
        url: the address.
        size: of the file in bytes; None if it is unknown.
        has_hash: the caller knows its hash and will check it.
        attempts: in a row without a new byte, before giving up.
    """

    url: str
    size: int | None = None
    has_hash: bool = False
    attempts: int = ATTEMPTS

    def fetch(self, part: Path, report: Report) -> None:
        """Complete ``part``, with new attempts as long as they receive new bytes.

        Raises:
            WeightsError: no connection, no such file, another size; a part of the right file is
                kept for the next call.
            OSError: `part` cannot be written: one of `DISK_ERRORS`.
        """
        failures = 0
        for _ in range(REQUESTS):
            before = _size(part)
            try:
                self._transfer(part, report)
                _version_file(part).unlink(missing_ok=True)
                return
            except urllib.error.HTTPError as error:
                if error.code < 500 and error.code not in TEMPORARY:
                    reason = " ".join(str(error.reason).split())  # of a redirect: several lines
                    raise self._error(f"HTTP {error.code} {reason}") from None
                cause: Exception = error
            except (OSError, http.client.HTTPException) as error:
                if getattr(error, "errno", None) in DISK_ERRORS:
                    raise
                cause = error
            failures = 1 if _size(part) > before else failures + 1
            if failures >= self.attempts:
                break
            time.sleep(max(PAUSE * 2 ** (failures - 1), _asked_pause(cause)))
        kept = f". {_size(part):,} bytes are kept in {part}; the next download resumes from there"
        raise self._error(f"{_reason(cause)}{kept if _size(part) else ''}.") from cause

    def _transfer(self, part: Path, report: Report) -> None:
        """One request for the missing bytes; an early end raises ConnectionError."""
        version = _version(part)
        if version is None and not self.has_hash:
            part.unlink(missing_ok=True)  # nothing tells whether the server still has this file
        have = _size(part)
        headers = {"User-Agent": "ffn"}
        if have:
            headers |= {"Range": f"bytes={have}-"} | ({"If-Range": version} if version else {})
        request = urllib.request.Request(self.url, headers=headers)
        try:
            opener = urllib.request.build_opener(_WebRedirects(self))
            response = opener.open(request, timeout=TIMEOUT)
        except urllib.error.HTTPError as error:
            if error.code != 416 or not have:
                raise
            if self.size is not None and have < self.size:
                self.check_size(have, have)
            total = re.fullmatch(r"bytes \*/(\d+)", error.headers.get("Content-Range", ""))
            complete = int(total[1]) == have if total else self.has_hash
            if complete and self.size in (None, have):
                return
            raise _restart(part, f"the server has no bytes from {have:,} on") from None
        with response:
            self._receive(response, part, have, report)

    def _receive(
        self, response: http.client.HTTPResponse, part: Path, have: int, report: Report
    ) -> None:
        encoding = response.headers.get("Content-Encoding", "identity")
        if encoding != "identity":
            raise self._error(
                f"the server sent Content-Encoding {encoding}, which was not requested; expected "
                "the bytes of the file"
            )
        start = 0
        if response.status == 206:
            given = response.headers.get("Content-Range", "")
            found = re.fullmatch(r"bytes (\d+)-\d+/(?:\d+|\*)", given)
            if not found or int(found[1]) != have:
                raise _restart(
                    part, f"asked for bytes from {have:,} on, received {given or 'none'}"
                )
            if _version(part) not in (None, _validator(response)):
                raise _restart(part, "the file on the server has changed")
            start = have
        length = response.headers.get("Content-Length")
        total = self.size if length is None else start + int(length)
        self.check_size(start, total)
        if not start:
            _set_version(part, _validator(response))
        with part.open("ab" if start else "wb") as file:
            while chunk := response.read1(CHUNK):  # keeps what precedes a timeout
                file.write(chunk)
                self.check_size(file.tell(), total)
                report(file.tell(), total)
            received = file.tell()
        if total is not None and received < total:
            got, wanted = received - start, total - start
            raise ConnectionError(f"interrupted after {got:,} of {wanted:,} bytes")

    def check_size(self, received: int, total: int | None) -> None:
        """Refuse a file of another size.

        Args:
            received: bytes so far.
            total: of the file, as the server states it; None if it does not.

        Raises:
            WeightsError: the total is not `size`, or there are more bytes than expected.
        """
        bound = DOWNLOAD_BYTES.value if self.size is None else self.size
        if total is not None and (total > bound or self.size not in (None, total)):
            raise self._error(f"the file has {total:,} bytes, expected {_bound(self.size)}")
        if received > bound:
            raise self._error(f"the file has over {bound:,} bytes, expected {_bound(self.size)}")

    def refuse_redirect(self, url: str) -> None:
        """Refuse a redirect to anything but http and https.

        Raises:
            WeightsError: it is another address.
        """
        if urlsplit(url).scheme not in ("http", "https"):
            raise self._error(f"redirected to {url}; expected an http or https address")

    def _error(self, text: str) -> WeightsError:
        return WeightsError(f"cannot download {self.url}: {text}")


class _WebRedirects(urllib.request.HTTPRedirectHandler):
    """Asks a file before a redirect is followed; urllib itself would connect to ftp."""

    def __init__(self, file: WebFile) -> None:
        self.file = file

    def redirect_request(self, *arguments: Any) -> urllib.request.Request | None:
        """As urllib's; the last argument is the new address."""
        self.file.refuse_redirect(arguments[-1])
        return super().redirect_request(*arguments)


def _validator(response: http.client.HTTPResponse) -> str | None:
    """What identifies this version of the file byte by byte: a strong ETag, or else the date."""
    tag = response.headers.get("ETag")
    if tag and not tag.startswith("W/"):
        return tag
    return response.headers.get("Last-Modified")


def _restart(part: Path, reason: str) -> ConnectionError:
    part.unlink(missing_ok=True)
    return ConnectionError(f"{reason}; the download starts again")


def _reason(error: Exception) -> str:
    """The text of an error; urllib puts that of a refused connection in brackets."""
    cause = getattr(error, "reason", None)  # an HTTPError has a text there
    return explain(cause if isinstance(cause, OSError) else error)


def _asked_pause(error: Exception) -> float:
    """Seconds that the server asks to wait, up to a minute."""
    asked = error.headers.get("Retry-After", "") if hasattr(error, "headers") else ""
    return min(float(asked), LONGEST_PAUSE) if asked.isdigit() else 0.0


def _bound(size: int | None) -> str:
    if size is not None:
        return f"{size:,} bytes as the record states"
    return f"at most {DOWNLOAD_BYTES.value:,} (raise the limit with {DOWNLOAD_BYTES.variable})"


def _version_file(part: Path) -> Path:
    return part.with_name(f"{part.name}.version")


def _version(part: Path) -> str | None:
    path = _version_file(part)
    return path.read_text().strip() or None if path.is_file() else None


def _set_version(part: Path, version: str | None) -> None:
    write_text(_version_file(part), f"{version or ''}\n")


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0
