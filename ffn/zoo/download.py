"""Files from the web: cached, resumed where they broke off, never used before their hash fits."""

from __future__ import annotations

import hashlib
import http.client
import logging
import os
import time
import urllib.error
import urllib.request
from pathlib import Path
from urllib.parse import unquote, urlsplit

from filelock import FileLock

from ffn.zoo.records import WeightsError

ATTEMPTS = 5  # in a row that bring nothing new, before giving up
TIMEOUT = 30  # seconds without a byte
PAUSE = 1.0  # seconds before the second attempt, doubled for each further one
CHUNK = 1 << 20  # bytes

_log = logging.getLogger(__name__)


def home() -> Path:
    """Where downloads are kept: the folder named by ``FFN_HOME``, by default ``~/.cache/ffn``."""
    return Path(os.environ.get("FFN_HOME") or "~/.cache/ffn").expanduser()


def download(url: str, *, sha256: str | None, name: str | None = None) -> Path:
    """Return the local copy of a file, fetched on the first call only.

    A copy that is there and has the right hash is used without touching the network. A transfer
    that broke off is continued, also by a later process. Two processes never write at once.

    Args:
        url: http or https address.
        sha256: hash that the file must have, 64 hex digits; None if nobody knows it. The hash of
            the first download is then written beside it, ``….sha256``, and asked for ever after.
        name: of the local file; by default, the last part of the address.

    Returns:
        Path of the complete and checked file, ``FFN_HOME/weights/<hash>-<name>``, where ``<hash>``
        is that of the address if the file's is not known.

    Raises:
        WeightsError: no connection, no such file, or another hash; a file of another hash is kept
            beside the place with the ending ``.rejected``, and not used.
    """
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https"):
        raise WeightsError(f"cannot download {url!r}: expected an http or https address")
    folder = home() / "weights"
    key = sha256 or hashlib.sha256(url.encode()).hexdigest()
    target = folder / f"{key[:16]}-{name or Path(unquote(parts.path)).name or 'file'}"
    pinned = target.with_name(f"{target.name}.sha256") if sha256 is None else None
    sha256 = sha256 or _pinned(pinned)
    if target.is_file() and sha256_of(target) == sha256:
        return target

    folder.mkdir(parents=True, exist_ok=True)
    with FileLock(f"{target}.lock"):
        sha256 = sha256 or _pinned(pinned)
        if target.is_file():
            if sha256_of(target) == sha256:  # another process was faster
                return target
            _log.warning("%s was damaged after its download; fetching it again", target)
            _reject(target)
        part = target.with_name(f"{target.name}.part")
        _log.info("downloading %s to %s", url, target)
        _fetch(url, part)
        found = sha256_of(part)
        if sha256 is None:
            _log.warning(
                "%s: nobody has recorded a hash of it; sha256 %s is remembered from now on",
                url,
                found,
            )
            pinned.write_text(f"{found}\n")
        elif found != sha256:
            raise WeightsError(
                f"{url} has sha256 {found}, expected {sha256}. It was not used and lies in "
                f"{_reject(part, target)}. Try again; if this stays, the file was changed."
            )
        os.replace(part, target)
    return target


def forget(path: Path) -> Path:
    """Put a download aside that turned out to be useless, with the hash that was kept of it.

    Returns:
        Where it lies now; the next :func:`download` fetches it anew.
    """
    with FileLock(f"{path}.lock"):
        path.with_name(f"{path.name}.sha256").unlink(missing_ok=True)
        if path.is_file():  # unless another process was faster
            _reject(path)
    return path.with_name(f"{path.name}.rejected")


def sha256_of(path: Path) -> str:
    """The sha256 of a file, 64 hex digits."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(CHUNK):
            digest.update(chunk)
    return digest.hexdigest()


def _pinned(path: Path | None) -> str | None:
    """The hash of the first download, if there was one."""
    return path.read_text().strip() if path is not None and path.is_file() else None


def _reject(path: Path, name: Path | None = None) -> Path:
    """Put a file aside, under the name it would have had."""
    aside = (name or path).with_name(f"{(name or path).name}.rejected")
    os.replace(path, aside)
    return aside


def _fetch(url: str, part: Path) -> None:
    """Complete ``part``, continuing as long as attempts bring new bytes."""
    failures = 0
    while True:
        before = _size(part)
        try:
            _transfer(url, part)
            return
        except urllib.error.HTTPError as error:
            if error.code < 500:
                raise WeightsError(
                    f"cannot download {url}: HTTP {error.code} {error.reason}"
                ) from None
            cause: Exception = error
        except (OSError, http.client.HTTPException) as error:
            cause = error
        failures = 1 if _size(part) > before else failures + 1
        if failures == ATTEMPTS:
            raise WeightsError(
                f"cannot download {url}: {cause}. {_size(part):,} bytes are kept in {part}; "
                "the next try goes on from there."
            ) from cause
        time.sleep(PAUSE * 2 ** (failures - 1))


def _transfer(url: str, part: Path) -> None:
    """One request: append what ``part`` lacks; an early end raises ConnectionError."""
    have = _size(part)
    headers = {"User-Agent": "ffn"} | ({"Range": f"bytes={have}-"} if have else {})
    request = urllib.request.Request(url, headers=headers)
    try:
        response = urllib.request.urlopen(request, timeout=TIMEOUT)
    except urllib.error.HTTPError as error:
        if have and error.code == 416:  # nothing lies beyond: the part is complete, or too long
            return
        raise
    with response:
        resumed = response.status == 206
        expected = response.headers.get("Content-Length")
        with part.open("ab" if resumed else "wb") as file:
            start = file.tell()
            while chunk := response.read(CHUNK):
                file.write(chunk)
            received = file.tell() - start
    if expected is not None and received < int(expected):
        raise ConnectionError(f"broken off after {received:,} of {int(expected):,} bytes")


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0
