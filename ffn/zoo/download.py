"""Download files with pooch: cached in ``FFN_HOME``, atomic, checked by SHA-256 before use."""

from __future__ import annotations

import hashlib
import logging
import os
import re
import sys
from pathlib import Path
from urllib.parse import unquote, urlsplit

from filelock import FileLock

from ffn.files import home, sha256_of, write_text
from ffn.zoo.records import WeightsError
from ffn.zoo.torch_files import refuse_web_page

RETRIES = 2  # after a failed connection, or another hash
CHUNK = 1 << 20  # bytes
_DRIVE = ("drive.google.com", "docs.google.com", "drive.usercontent.google.com")

_log = logging.getLogger(__name__)


def is_offline() -> bool:
    """Whether the environment variable ``FFN_OFFLINE`` forbids downloads: set, and not 0."""
    return os.environ.get("FFN_OFFLINE", "") not in ("", "0")


def download(url: str, *, sha256: str | None, name: str | None = None) -> Path:
    """Return the local copy of a file; the first call downloads it.

    A copy with the right hash is used without network access. A lock keeps two processes from
    downloading one file twice.

    Args:
        url: http or https address, also of Google Drive.
        sha256: expected hash, 64 hex digits; None if it is unknown. The hash of the first download
            is then stored next to the file, ``….sha256``, and expected from then on.
        name: of the local file; by default, the last part of the address.

    Returns:
        Path of the complete and checked file, ``FFN_HOME/weights/<hash>-<name>``, where ``<hash>``
        is that of the address if that of the file is unknown.

    Raises:
        WeightsError: no connection, or ``FFN_OFFLINE=1``; no such file, another hash, or a web page
            in place of a file of unknown hash.
        OSError: the folder cannot be written.
    """
    if urlsplit(url).scheme not in ("http", "https"):
        raise WeightsError(f"cannot download {url!r}: expected an http or https address")
    key = sha256 or hashlib.sha256(url.encode()).hexdigest()
    name = name or Path(unquote(urlsplit(url).path)).name
    target = home() / "weights" / f"{key[:16]}-{name}"
    if _is_right(target, sha256):
        return target
    if is_offline():
        raise WeightsError(
            f"{url} is not in {target.parent}, and FFN_OFFLINE is set; download it once without"
        )
    target.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(f"{target}.lock"):
        if not _is_right(target, sha256):  # another process may have downloaded it
            _fetch(url, target, sha256 or _stored_hash(target))
    return target


def forget(path: Path) -> None:
    """Remove an unusable download and its stored hash: the next call downloads it again."""
    _hash_file(path).unlink(missing_ok=True)
    path.unlink(missing_ok=True)


def _is_right(target: Path, sha256: str | None) -> bool:
    return target.is_file() and sha256_of(target) == (sha256 or _stored_hash(target))


def _hash_file(target: Path) -> Path:
    """The file with the hash of the first download, for a file whose hash is unknown."""
    return target.with_name(f"{target.name}.sha256")


def _stored_hash(target: Path) -> str | None:
    file = _hash_file(target)
    return file.read_text().strip() if file.is_file() else None


def _fetch(url: str, target: Path, expected: str | None) -> None:
    """Download a file; pooch writes it under a temporary name until its hash is checked."""
    import pooch
    import requests

    cache = pooch.create(
        path=target.parent,
        base_url="",
        registry={target.name: expected},
        urls={target.name: url},
        retry_if_failed=RETRIES,
    )
    downloader = pooch.HTTPDownloader(progressbar=sys.stderr.isatty(), chunk_size=CHUNK)
    if urlsplit(url).hostname in _DRIVE:
        downloader = _from_drive
    try:
        cache.fetch(target.name, downloader=downloader)
        if expected is None:
            refuse_web_page(target)
    except WeightsError as error:
        target.unlink(missing_ok=True)
        raise WeightsError(f"cannot download {url}: {error}") from error
    except (requests.RequestException, ValueError) as error:  # ValueError: another hash
        raise WeightsError(f"cannot download {url}: {error}. The file is not used") from error
    if expected is None:
        found = sha256_of(target)
        _log.warning("%s: the expected sha256 is unknown; %s is stored as it", url, found)
        write_text(_hash_file(target), f"{found}\n")


def _from_drive(url: str, output: str, _: object) -> None:
    try:
        import gdown
    except ImportError as error:
        raise WeightsError(
            f"files on Google Drive need gdown ({error}): pip install 'frame-flexible[drive]'"
        ) from None

    found = re.search(r"(?:/d/|[?&]id=)([-\w]+)", url)
    file_id = found[1] if found else ""
    try:
        gdown.download(id=file_id, output=output, quiet=not sys.stderr.isatty(), use_cookies=False)
    except Exception as error:  # gdown raises errors of several packages
        raise WeightsError(str(error).strip().partition("\n")[0]) from error
