"""Download files: cached, resumed after an interruption, and checked by SHA-256 before use.

A file may have several addresses, which are tried in order, after the mirrors in the environment
variable ``FFN_MIRRORS``. A mirror is a copy of the folder ``FFN_HOME/weights``.
"""

from __future__ import annotations

import errno
import hashlib
import logging
import os
import re
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import quote, unquote, urlsplit

from filelock import FileLock

from ffn.files import write_text
from ffn.zoo.content import wrong_content
from ffn.zoo.hosts import fetch_file
from ffn.zoo.records import WeightsError
from ffn.zoo.web import ATTEMPTS, CHUNK, WebFile

ATTEMPTS_BEFORE_NEXT = 2  # in a row without a new byte, if another address follows
_SCHEMES = ("http", "https", "hf")

_log = logging.getLogger(__name__)


def home() -> Path:
    """The folder of downloads: the environment variable ``FFN_HOME``, or ``~/.cache/ffn``."""
    return Path(os.environ.get("FFN_HOME") or "~/.cache/ffn").expanduser()


def is_offline() -> bool:
    """Whether the environment variable ``FFN_OFFLINE`` forbids downloads: set, and not 0.

    Raises:
        ValueError: it is neither 0 nor 1.
    """
    value = os.environ.get("FFN_OFFLINE", "0") or "0"
    if value not in ("0", "1"):
        raise ValueError(f"FFN_OFFLINE is {value!r}; expected 1, or 0")
    return value == "1"


def mirrors() -> list[str]:
    """The addresses in the environment variable ``FFN_MIRRORS``, without a slash at their end.

    Raises:
        ValueError: one is no http, https or hf address.
    """
    bases = os.environ.get("FFN_MIRRORS", "").split()
    for base in bases:
        parts = urlsplit(base)
        if parts.scheme not in _SCHEMES or not parts.netloc or parts.query or parts.fragment:
            raise ValueError(
                f"FFN_MIRRORS has {base!r}; expected http, https or hf addresses of folders, "
                "separated by spaces, such as https://mirror.example.org/ffn"
            )
    return [base.rstrip("/") for base in bases]


def download(
    url: str | Sequence[str],
    *,
    sha256: str | None,
    name: str | None = None,
    size: int | None = None,
) -> Path:
    """Return the local copy of a file; the first call downloads it.

    A copy with the right hash is used without network access. A later call, also of another
    process, resumes an interrupted http(s) download, and one from Google Drive if its hash is
    known. A lock keeps two processes from writing at once. On a terminal, a progress bar is shown.

    If the hash is known, the file is looked for on each mirror in ``FFN_MIRRORS``, as
    ``<mirror>/<hash>-<name>``, and then at each address. An address that fails or has another file
    causes a warning, and the next one is tried. If the hash is unknown, only the first address is
    used, and a file that cannot be what its name says, such as an error page, is refused.

    Args:
        url: http or https address, or ``hf://OWNER/REPO[@REVISION]/PATH`` on the Hugging Face Hub;
            or several addresses.
        sha256: expected hash, 64 hex digits; None if it is unknown. The hash of the first download
            is then stored next to the file, ``….sha256``, and expected from then on.
        name: of the local file; by default, the last part of the first address.
        size: of the file in bytes, if it is known; a file of another size is refused.

    Returns:
        Path of the complete and checked file, ``FFN_HOME/weights/<hash>-<name>``, where ``<hash>``
        is the hash of the first address if that of the file is unknown.

    Raises:
        WeightsError: no connection, or ``FFN_OFFLINE=1``; no such file, a folder that cannot be
            written, or another hash. A file with another hash is renamed to ``….rejected`` and not
            used.
        ValueError: ``FFN_MIRRORS`` or ``FFN_OFFLINE`` has another value than described.
    """
    addresses = _addresses(url)
    target = cache_path(addresses, sha256=sha256, name=name)
    if target.is_file() and sha256_of(target) == (sha256 or stored_hash(target)):
        return target
    if is_offline():
        raise WeightsError(
            f"{addresses[0]} is not in {target.parent}, and FFN_OFFLINE is set; download it once "
            f"without, or copy it to {target}"
            + ("" if sha256 else f" and the file with its SHA-256 to {_hash_file(target)}")
        )

    with _writable(target):
        expected = sha256 or stored_hash(target)
        if target.is_file():
            if sha256_of(target) == expected:  # downloaded by another process in the meantime
                return target
            _log.warning("%s does not have its SHA-256 any more; downloading it again", target)
            _reject(target)
        part = _fetch_any(addresses, target, expected, size)
        if expected is None:
            found = sha256_of(part)
            _log.warning(
                "%s: the expected sha256 is unknown; %s is stored as it", addresses[0], found
            )
            write_text(_hash_file(target), f"{found}\n")
        os.replace(part, target)
        _remove_parts(target)
    return target


def cache_path(url: str | Sequence[str], *, sha256: str | None, name: str | None = None) -> Path:
    """Where :func:`download` keeps a file; the arguments are its."""
    address = _addresses(url)[0]
    key = sha256 or hashlib.sha256(address.encode()).hexdigest()
    name = name or Path(unquote(urlsplit(address).path)).name or "file"
    return home() / "weights" / f"{key[:16]}-{name}"


def stored_hash(path: Path) -> str | None:
    """The hash of the first download of a file whose hash is unknown, if there is one."""
    file = _hash_file(path)
    return file.read_text().strip() if file.is_file() else None


def forget(path: Path) -> Path:
    """Rename an unusable download to ``….rejected``, and remove its stored hash.

    Returns:
        The new path; the next :func:`download` fetches the file again.
    """
    with FileLock(f"{path}.lock"):
        _hash_file(path).unlink(missing_ok=True)
        if path.is_file():  # unless another process has renamed it
            _reject(path)
    return path.with_name(f"{path.name}.rejected")


def sha256_of(path: Path) -> str:
    """The SHA-256 of a file, 64 hex digits."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(CHUNK):
            digest.update(chunk)
    return digest.hexdigest()


def _addresses(url: str | Sequence[str]) -> tuple[str, ...]:
    addresses = (url,) if isinstance(url, str) else tuple(url)
    if not addresses:
        raise WeightsError("cannot download a file without an address")
    for address in addresses:
        if urlsplit(address).scheme not in _SCHEMES:
            raise WeightsError(
                f"cannot download {address!r}: expected an http, https or hf address"
            )
    return addresses


def _fetch_any(
    addresses: Sequence[str], target: Path, expected: str | None, size: int | None
) -> Path:
    """Download from the first mirror or address that has the right file; returns the part."""
    own, left = addresses[0], len(addresses) - 1
    if expected is None:
        addresses = addresses[:1]
    else:
        addresses = [*(f"{base}/{quote(target.name)}" for base in mirrors()), *addresses]
    causes: list[str] = []
    for place, address in enumerate(addresses, 1):
        is_last = place == len(addresses)
        attempts = ATTEMPTS if is_last else ATTEMPTS_BEFORE_NEXT
        file = WebFile(address, size, has_hash=expected is not None, attempts=attempts)
        part = _part(target, None if address == own else address)
        try:
            _fetch_checked(file, part, target, expected)
            return part
        except WeightsError as error:
            causes.append(str(error).rstrip("."))
            if not is_last:
                _log.warning("%s; trying the next address, %s", causes[-1], addresses[place])
            elif place == 1:
                unused = f". The sha256 is unknown: {left} further addresses are not used"
                raise WeightsError(f"{causes[0]}{unused if left else ''}") from error
    listed = "".join(f"\n  {cause}" for cause in causes)
    raise WeightsError(f"none of {len(causes)} addresses gave {target.name}:{listed}")


def _fetch_checked(file: WebFile, part: Path, target: Path, expected: str | None) -> None:
    """Download a file from one address, and check it.

    Raises:
        WeightsError: it cannot be downloaded, or is another file; that is put aside.
    """
    print(f"downloading {file.url} to {target}", file=sys.stderr, flush=True)
    fetch_file(file, part, _label(target))
    found, wrong = sha256_of(part), wrong_content(part, target.name)
    if expected is None and wrong:
        raise WeightsError(
            f"{file.url} has no {_label(target)}: {wrong}. The file is not used; it was moved to "
            f"{_reject(part, target)}. Try again, or open the address in a browser."
        )
    if expected not in (None, found):
        raise WeightsError(
            f"{file.url} has sha256 {found}, expected {expected}{f'; {wrong}' if wrong else ''}. "
            f"The file is not used; it was moved to {_reject(part, target)}. Try again; a second "
            "failure means that the file at this address has changed."
        )


@contextmanager
def _writable(target: Path) -> Iterator[None]:
    """Create the folder of a file, and hold the file's lock; explain errors of the disk."""
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(f"{target}.lock"):
            yield
    except OSError as error:
        raise disk_error(target.parent, error) from error


def disk_error(folder: Path, error: OSError) -> WeightsError:
    """The error of downloads that cannot be written to a folder, with what to do."""
    remedy = "Set the environment variable FFN_HOME to a folder that can be written"
    if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        remedy = (
            "Free space on its disk, and the next download resumes, or set the environment "
            "variable FFN_HOME to a folder on another disk"
        )
    cause = error.strerror or error
    return WeightsError(f"cannot write downloads to {folder}: {cause}. {remedy}")


def _hash_file(target: Path) -> Path:
    """The file with the hash of the first download."""
    return target.with_name(f"{target.name}.sha256")


def _label(target: Path) -> str:
    """The name of a file without the hash."""
    return target.name.partition("-")[2]


def _part(target: Path, address: str | None) -> Path:
    """The incomplete file; a mirror or a further address has its own, with digits of its hash."""
    digits = "" if address is None else f".{hashlib.sha256(address.encode()).hexdigest()[:8]}"
    return target.with_name(f"{target.name}{digits}.part")


def _remove_parts(target: Path) -> None:
    """Remove what other addresses left, also gdown, after one has given the file."""
    leftover = re.compile(re.escape(target.name) + r"(\.[0-9a-f]{8})?\.part(\.version|.{8}\.part)?")
    for path in target.parent.iterdir():
        if leftover.fullmatch(path.name):
            path.unlink(missing_ok=True)


def _reject(path: Path, name: Path | None = None) -> Path:
    """Rename a file to ``NAME.rejected``; ``NAME`` is its own by default."""
    aside = (name or path).with_name(f"{(name or path).name}.rejected")
    os.replace(path, aside)
    return aside
