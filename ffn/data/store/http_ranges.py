"""Range requests over http whose answers are checked; needs aiohttp."""

from __future__ import annotations

import asyncio
import re
from typing import Any

from fsspec.implementations.http import HTTPFileSystem

from ffn.data.store.layout import RangesIgnoredError, WrongLengthError

_PLACE = re.compile(r"bytes (?:(\d+)-(\d+)|\*)/(\d+|\*)")


class RangeFileSystem(HTTPFileSystem):
    """fsspec's file system, except for parts of files.

    fsspec accepts any answer to a request for a range. A server that ignores the request would
    send the whole file, for every range, into the memory.
    """

    async def _cat_file(
        self, url: str, start: int | None = None, end: int | None = None, **more: Any
    ) -> bytes:
        """Bytes `start` to `end` of a file of `more["size"]` bytes.

        Raises:
            FileNotFoundError: if there is no such file.
            RangesIgnoredError: if the whole file is sent.
            WrongLengthError: if the file has another length.
            OSError: if the answer is another part or too short.
        """
        size = more["size"]
        headers = {"Range": f"bytes={start}-{end - 1}", "Accept-Encoding": "identity"}
        session = await self.set_session()
        async with session.get(self.encode_url(url), headers=headers) as answer:
            place = _PLACE.fullmatch(answer.headers.get("Content-Range", ""))
            if place is not None and place[3] not in ("*", str(size)):
                raise WrongLengthError(
                    f"the shard has {int(place[3]):,} bytes; store.json says {size:,}"
                )
            self._raise_not_found_for_status(answer, url)
            if answer.status == 200:
                raise RangesIgnoredError("the answer is the whole file")
            if answer.status != 206 or place is None or place[1] != str(start):
                shown = answer.headers.get("Content-Range", "no Content-Range")
                raise OSError(f"bytes {start}-{end - 1} requested; HTTP {answer.status}, {shown}")
            if encoding := answer.headers.get("Content-Encoding"):
                raise OSError(f"the answer is encoded ({encoding})")
            try:
                return await answer.content.readexactly(end - start)
            except asyncio.IncompleteReadError as error:
                raise OSError(f"{len(error.partial):,} of {end - start:,} bytes came") from None
