"""A client of the endpoint of ``ffn serve``.

The file needs the standard library only: copy it to computers without ffn.
"""

from __future__ import annotations

import http.client
import json
import os
from collections.abc import Sequence
from contextlib import closing, suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlencode, urlsplit

CONNECTIONS = {"http": http.client.HTTPConnection, "https": http.client.HTTPSConnection}


class ServiceError(RuntimeError):
    """A request that a service did not answer.

    Attributes:
        status: HTTP status; 0 if there was no answer at all.
    """

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class Client:
    """Asks a service for predictions; several threads may use a client.

    Args:
        address: Of the service, e.g. ``http://localhost:7860``.
        timeout: Seconds without data from the service.

    Raises:
        ValueError: if it is no address of a host.
    """

    def __init__(self, address: str, timeout: float = 120.0) -> None:
        self._parts = urlsplit(address)
        netloc = self._parts.netloc
        if self._parts.scheme not in CONNECTIONS or not netloc or "@" in netloc:
            raise ValueError(
                f"address is {address.rpartition('@')[2]!r}; expected http://HOST:PORT"
            )
        self.address, self.timeout = address.rstrip("/"), timeout

    def predict(
        self,
        video: str | os.PathLike[str] | bytes,
        frames: int | str | Sequence[int | str] | None = None,
        *,
        model: str | None = None,
        top: int = 5,
    ) -> dict[str, Any] | list[dict[str, Any]]:
        """Predict the labels of a video.

        Args:
            video: Path of a file, or its bytes.
            frames: Number of frames, or "auto"; or a list, for an answer with each.
            model: Name of the weights; default: the first of the service.
            top: Number of labels.

        Returns:
            The values of ``Prediction.to_dict``, with ``name`` in place of ``path``, ``gmacs``, and
            the ``indices`` of the frames; a list of these for a list of `frames`.

        Raises:
            ServiceError: if the service refuses the request, or does not answer.
            OSError: if the file cannot be read.
        """
        several = isinstance(frames, Sequence) and not isinstance(frames, str)
        name = None if isinstance(video, bytes) else Path(video).name[:200]
        query = {"model": model, "frames": frames, "top": top, "name": name}
        given = {key: value for key, value in query.items() if value is not None}
        # Names of files that are no UTF-8 have characters that cannot be sent.
        path = f"/api/predict?{urlencode(given, doseq=True, errors='replace')}"
        body = video if isinstance(video, bytes) else Path(video).read_bytes()
        found = self._ask("POST", path, body)["predictions"]
        return found if several else found[0]

    def models(self) -> list[dict[str, Any]]:
        """The networks of the service: names, classes, trained numbers of frames, cost.

        Raises:
            ServiceError: if the service does not answer.
        """
        return self._ask("GET", "/api/models")

    def healthy(self) -> bool:
        """Whether the service answers videos."""
        try:
            return self._ask("GET", "/health")["healthy"]
        except ServiceError:
            return False

    def _ask(self, method: str, path: str, body: bytes | None = None) -> Any:
        """The JSON values of an answer."""
        connect = CONNECTIONS[self._parts.scheme]
        path = f"{self._parts.path.rstrip('/')}{path}"
        headers = {} if body is None else {"Content-Type": "application/octet-stream"}
        try:
            with closing(connect(self._parts.netloc, timeout=self.timeout)) as connection:
                # A service refuses a large file before all of it was sent, and closes.
                with suppress(BrokenPipeError, ConnectionResetError):
                    connection.request(method, path, body, headers)
                answer = connection.getresponse()
                status, content = answer.status, answer.read()
        except (OSError, http.client.HTTPException) as error:
            cause = getattr(error, "strerror", None) or error
            raise ServiceError(0, f"{self.address} does not answer: {cause}") from error
        try:
            values = json.loads(content)
        except ValueError:
            raise ServiceError(status, f"{self.address}{path}: no JSON, status {status}") from None
        if status != 200:
            message = values.get("detail", values) if isinstance(values, dict) else values
            raise ServiceError(status, str(message))
        return values
