"""A bound of the connections of a server, so that those that ask nothing do not keep others out."""

from __future__ import annotations

import asyncio

from uvicorn.protocols.http.h11_impl import H11Protocol


def bounded_protocol(most: int) -> type[H11Protocol]:
    """Connections of a server, of which the oldest is closed for one too many.

    That is the oldest that waits for a request, if one does. A few hundred that are never closed
    would use all descriptors of the process.
    """
    opened: dict[H11Protocol, None] = {}  # in order

    class Connection(H11Protocol):
        def connection_made(self, transport: asyncio.Transport) -> None:
            super().connection_made(transport)
            if len(opened) >= most:
                waits = [one for one in opened if one.cycle is None or one.cycle.response_complete]
                oldest = next(iter(waits or opened))
                del opened[oldest]
                oldest.transport.abort()
            opened[self] = None

        def connection_lost(self, exc: Exception | None) -> None:
            opened.pop(self, None)
            super().connection_lost(exc)

    return Connection
