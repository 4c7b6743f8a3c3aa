"""Fetch one file with the library of its host, and show a progress bar.

Files on the Hugging Face Hub are fetched with huggingface_hub (tokens, mirrors, Xet), files on
Google Drive with gdown (confirmation pages). Other addresses are fetched by ``ffn.zoo.web``: gdown
fails forever on a server without ranges, and huggingface_hub does not resume in a later process.
"""

from __future__ import annotations

import glob
import os
import re
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import parse_qs, unquote, urlsplit

from ffn.zoo.records import WeightsError
from ffn.zoo.web import DISK_ERRORS, TIMEOUT, Report, WebFile

_HUB = (
    r"hf://(?P<repo>[^/@]+/[^/@]+)(?:@(?P<revision>[^/]+))?/(?P<path>.+)",
    r"https?://(?:huggingface\.co|hf\.co)/(?P<repo>[^/]+/[^/]+)/(?:resolve|blob)"
    r"/(?P<revision>[^/]+)/(?P<path>[^?#]+).*",
)
_DRIVE = ("drive.google.com", "docs.google.com", "drive.usercontent.google.com")


def fetch_file(file: WebFile, part: Path, label: str) -> None:
    """Download a file to ``part``; an interrupted download may leave a part of it for later.

    Args:
        file: its address, and what is known of it.
        part: path to write.
        label: name of the file next to the progress bar.

    Raises:
        WeightsError: no connection, no such file, or another size.
        OSError: ``part`` cannot be written.
    """
    url = file.url
    hub = next(filter(None, (re.fullmatch(pattern, url) for pattern in _HUB)), None)
    drive_id = _drive_id(url)
    try:
        if hub:
            _fetch_from_hub(hub["repo"], hub["revision"], unquote(hub["path"]), part)
        elif drive_id:
            _fetch_from_drive(file, drive_id, part, label)
        else:
            with _progress(label) as report:
                file.fetch(part, report)
        file.check_size(part.stat().st_size, part.stat().st_size)
    except WeightsError:
        raise
    except Exception as error:  # the libraries raise errors of several packages
        if getattr(error, "errno", None) in DISK_ERRORS:
            raise
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


def _fetch_from_drive(file: WebFile, file_id: str, part: Path, label: str) -> None:
    """Download with gdown, which keeps a partial file of its own next to ``part``.

    gdown does not record the version that the partial file is of; so a later call resumes it only
    if the hash will be checked.
    """
    try:
        import gdown
    except ImportError as error:
        raise WeightsError(
            f"{file.url} is on Google Drive, and downloads from there need gdown ({error}). "
            "Install it: pip install 'frame-flexible[drive]'"
        ) from None

    part.unlink(missing_ok=True)
    if not file.has_hash:
        _remove_partial(part)

    with _progress(label) as report:

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
                retries=file.attempts - 1,
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
def _progress(label: str) -> Iterator[Report]:
    """Show a progress bar on a terminal, nothing elsewhere."""
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TransferSpeedColumn

    columns = ("{task.description}", BarColumn(), DownloadColumn(), TransferSpeedColumn())
    console = Console(stderr=True)
    with Progress(*columns, console=console, disable=not console.is_terminal) as bar:
        task = bar.add_task(label, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)
