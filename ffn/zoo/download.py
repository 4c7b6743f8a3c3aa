"""Download files: cached, resumed after an interruption, and checked by SHA-256 before use.

Files on the Hugging Face Hub are fetched with huggingface_hub (tokens, mirrors, Xet), files on
Google Drive with gdown (confirmation pages). Other addresses are fetched here: gdown fails forever
on a server without ranges, and huggingface_hub does not resume in a later process.
"""

from __future__ import annotations

import glob
import hashlib
import logging
import os
import re
import sys
import tempfile
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from urllib.parse import parse_qs, unquote, urlsplit

from filelock import FileLock

from ffn.files import write_text
from ffn.zoo.records import WeightsError
from ffn.zoo.web import ATTEMPTS, CHUNK, TIMEOUT, Report, WebFile

_HUB = (
    r"hf://(?P<repo>[^/@]+/[^/@]+)(?:@(?P<revision>[^/]+))?/(?P<path>.+)",
    r"https?://(?:huggingface\.co|hf\.co)/(?P<repo>[^/]+/[^/]+)/(?:resolve|blob)"
    r"/(?P<revision>[^/]+)/(?P<path>[^?#]+).*",
)
_DRIVE = ("drive.google.com", "docs.google.com", "drive.usercontent.google.com")

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


def download(
    url: str, *, sha256: str | None, name: str | None = None, size: int | None = None
) -> Path:
    """Return the local copy of a file; the first call downloads it.

    A copy with the right hash is used without network access. A later call, also of another
    process, resumes an interrupted http(s) download, and one from Google Drive if its hash is
    known. A lock keeps two processes from writing at once. On a terminal, a progress bar is shown.

    Args:
        url: http or https address, or ``hf://OWNER/REPO[@REVISION]/PATH`` on the Hugging Face Hub.
        sha256: expected hash, 64 hex digits; None if it is unknown. The hash of the first download
            is then stored next to the file, ``….sha256``, and expected from then on.
        name: of the local file; by default, the last part of the address.
        size: of the file in bytes, if it is known; a file of another size is refused.

    Returns:
        Path of the complete and checked file, ``FFN_HOME/weights/<hash>-<name>``, where ``<hash>``
        is the hash of the address if that of the file is unknown.

    Raises:
        WeightsError: no connection, or ``FFN_OFFLINE=1``; no such file, a folder that cannot be
            written, or another hash. A file with another hash is renamed to ``….rejected`` and not
            used.
    """
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https", "hf"):
        raise WeightsError(f"cannot download {url!r}: expected an http, https or hf address")
    folder = home() / "weights"
    key = sha256 or hashlib.sha256(url.encode()).hexdigest()
    target = folder / f"{key[:16]}-{name or Path(unquote(parts.path)).name or 'file'}"
    pinned = target.with_name(f"{target.name}.sha256") if sha256 is None else None
    sha256 = sha256 or _pinned(pinned)
    if target.is_file() and sha256_of(target) == sha256:
        return target
    if is_offline():
        raise WeightsError(
            f"{url} is not in {folder}, and FFN_OFFLINE is set; download it once without, or copy "
            f"it to {target}"
        )

    with _locked(target):
        sha256 = sha256 or _pinned(pinned)
        if target.is_file():
            if sha256_of(target) == sha256:  # downloaded by another process in the meantime
                return target
            _log.warning("%s does not have its SHA-256 any more; downloading it again", target)
            _reject(target)
        part = target.with_name(f"{target.name}.part")
        print(f"downloading {url} to {target}", file=sys.stderr, flush=True)
        _fetch(WebFile(url, size, has_hash=sha256 is not None), part)
        found = sha256_of(part)
        if sha256 is None:
            _log.warning("%s: the expected sha256 is unknown; %s is stored as it", url, found)
            write_text(pinned, f"{found}\n")
        elif found != sha256:
            raise WeightsError(
                f"{url} has sha256 {found}, expected {sha256}. The file is not used; it was moved "
                f"to {_reject(part, target)}. Try again; a second failure means that the file at "
                "this address has changed."
            )
        os.replace(part, target)
    return target


def _locked(target: Path) -> AbstractContextManager:
    """Create the folder of a file, and wait for the file's lock."""
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        return FileLock(f"{target}.lock").acquire()
    except OSError as error:
        raise WeightsError(
            f"cannot write downloads to {target.parent}: {error.strerror or error}. Set the "
            "environment variable FFN_HOME to a folder that can be written"
        ) from error


def forget(path: Path) -> Path:
    """Rename an unusable download to ``….rejected``, and remove its stored hash.

    Returns:
        The new path; the next :func:`download` fetches the file again.
    """
    with FileLock(f"{path}.lock"):
        path.with_name(f"{path.name}.sha256").unlink(missing_ok=True)
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


def _pinned(path: Path | None) -> str | None:
    """The stored hash of the first download, if there is one."""
    return path.read_text().strip() if path is not None and path.is_file() else None


def _reject(path: Path, name: Path | None = None) -> Path:
    """Rename a file to ``NAME.rejected``; ``NAME`` is its own by default."""
    aside = (name or path).with_name(f"{(name or path).name}.rejected")
    os.replace(path, aside)
    return aside


def _fetch(file: WebFile, part: Path) -> None:
    """Download a file to ``part`` with the library of its host."""
    url = file.url
    hub = next(filter(None, (re.fullmatch(pattern, url) for pattern in _HUB)), None)
    drive_id = _drive_id(url)
    try:
        if hub:
            _fetch_from_hub(hub["repo"], hub["revision"], unquote(hub["path"]), part)
        elif drive_id:
            _fetch_from_drive(file, drive_id, part)
        else:
            with _progress(part) as report:
                file.fetch(part, report)
        file.check_size(part.stat().st_size, part.stat().st_size)
    except WeightsError:
        raise
    except Exception as error:  # the libraries raise errors of several packages
        raise WeightsError(f"cannot download {url}: {error}") from error


def _drive_id(url: str) -> str | None:
    """The id of a file on Google Drive, from a link to its page or to its content."""
    parts = urlsplit(url)
    if parts.hostname not in _DRIVE:
        return None
    on_page = re.match(r"/file/(?:u/\d+/)?d/([-\w]+)", parts.path)
    return on_page[1] if on_page else parse_qs(parts.query).get("id", [None])[0]


def _fetch_from_hub(repo: str, revision: str | None, path: str, part: Path) -> None:
    from huggingface_hub import hf_hub_download

    with tempfile.TemporaryDirectory(dir=part.parent, prefix=".hub-") as folder:
        os.replace(hf_hub_download(repo, path, revision=revision, local_dir=folder), part)


def _fetch_from_drive(file: WebFile, file_id: str, part: Path) -> None:
    """Download with gdown, which keeps a partial file of its own next to ``part``.

    gdown does not record the version that the partial file is of; so a later call resumes it only
    if the hash will be checked.
    """
    import gdown

    part.unlink(missing_ok=True)
    if not file.has_hash:
        _remove_partial(part)

    with _progress(part) as report:

        def check_and_report(done: int, total: int | None) -> None:
            file.check_size(done, total)
            report(done, total)

        try:
            gdown.download(
                id=file_id,
                output=str(part),
                resume=file.has_hash,
                quiet=True,
                use_cookies=False,
                timeout=TIMEOUT,
                retries=ATTEMPTS - 1,
                progress=check_and_report,
            )
        except WeightsError:  # another size: nothing to resume
            _remove_partial(part)
            raise


def _remove_partial(part: Path) -> None:
    """Remove gdown's partial files: the name, 8 random characters, ``.part``."""
    for path in part.parent.glob(f"{glob.escape(part.name)}{'?' * 8}.part"):
        path.unlink()


@contextmanager
def _progress(part: Path) -> Iterator[Report]:
    """Show a progress bar on a terminal, nothing elsewhere."""
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TransferSpeedColumn

    columns = ("{task.description}", BarColumn(), DownloadColumn(), TransferSpeedColumn())
    console = Console(stderr=True)
    with Progress(*columns, console=console, disable=not console.is_terminal) as bar:
        task = bar.add_task(part.stem.partition("-")[2], total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)
