"""Two fronts of a schedule of faults (`tests.s3_faults`) for the SDK: real HTTP, or none.

`wire` is a real HTTP server, so the SDK's own sockets, time-outs and parsing are in the play;
`no_wire` takes the place of the SDK's HTTP session and waits for nothing.
"""

from __future__ import annotations

import select
import socket
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from io import BytesIO
from typing import Any

import boto3
import pytest
import urllib3.exceptions
from botocore.awsrequest import AWSPreparedRequest, AWSResponse, HeadersDict
from botocore.config import Config
from botocore.exceptions import ConnectionClosedError, ReadTimeoutError

from tests.s3_faults import BUCKET, PREFIX, Answer, Asked, FaultySchedule, Wrong
from tracks_dagster.stores import s3 as s3_module
from tracks_dagster.stores.s3 import S3Store

READ_TIMEOUT_S = 0.3  # of the SDK on the wire; a reply of this server takes a few milliseconds
SILENCE_S_MAX = 10.0  # how long a reply is held back when the client does not give up


def open_faulty_store() -> S3Store:
    """A fresh store object on the schedule that is served; nothing is asked of it yet."""
    return S3Store(BUCKET, PREFIX)


class OneSession:
    """boto3's session with its clients kept: making one costs as much as a whole schedule.

    A client lives for one schedule, so that no schedule meets the retry quota of another.
    """

    def __init__(self) -> None:
        self._session = boto3.Session()
        self._clients: dict[int, Any] = {}

    def client(self, service: str, *, config: Config) -> Any:
        tries: int = config.retries["total_max_attempts"]  # type: ignore[attr-defined]
        if tries not in self._clients:
            self._clients[tries] = self._session.client(service, config=config)  # type: ignore[call-overload]
        return self._clients[tries]

    def renew(self) -> None:
        """Let the next schedule make its own; the connections of these are closed."""
        for client in self._clients.values():
            client.close()
        self._clients.clear()


@contextmanager
def no_wire(monkeypatch: pytest.MonkeyPatch) -> Iterator[Front]:
    """Serve in place of the SDK's HTTP session."""
    front = Front(_quiet(monkeypatch, "http://127.0.0.1:9"))
    monkeypatch.setattr(
        "botocore.httpsession.URLLib3Session.send", lambda self, request: _send(front, request)
    )
    yield front


@contextmanager
def wire(monkeypatch: pytest.MonkeyPatch) -> Iterator[Front]:
    """Serve HTTP on a free port; what is silent costs READ_TIMEOUT_S."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Handler)
    server.daemon_threads = True
    monkeypatch.setattr(s3_module, "READ_TIMEOUT_S", READ_TIMEOUT_S)
    front = Front(_quiet(monkeypatch, f"http://127.0.0.1:{server.server_port}"))
    server.front = front  # type: ignore[attr-defined]
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    try:
        yield front
    finally:
        front.close()
        server.shutdown()
        thread.join()
        server.server_close()


class Front:
    """Where requests come in; `play` exchanges what is behind it."""

    def __init__(self, session: OneSession) -> None:
        self._session = session
        self.served: FaultySchedule | None = None

    def close(self) -> None:
        """Close every connection of the SDK."""
        self._session.renew()

    def play(self, seed: int) -> FaultySchedule:
        """Serve the schedule of `seed`, on an empty bucket."""
        self._session.renew()
        self.served = FaultySchedule(seed)
        return self.served

    @property
    def is_silent(self) -> bool:
        return self.served is not None and self.served.is_silent

    def serve(self, asked: Asked) -> Answer:
        assert self.served is not None
        return self.served.serve(asked)


def _quiet(monkeypatch: pytest.MonkeyPatch, endpoint: str) -> OneSession:
    """Point the SDK at `endpoint`, without waiting between its tries."""
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", endpoint)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "tests")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "tests")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    backoff = "botocore.retries.standard.ExponentialBackoff.delay_amount"
    monkeypatch.setattr(backoff, lambda self, context: 0)
    session = OneSession()
    monkeypatch.setattr(s3_module.boto3, "Session", lambda: session)
    return session


class _Raw(BytesIO):
    """A reply's body as urllib3 gives it; with `breaks` the second half never comes."""

    def __init__(self, body: bytes, *, breaks: bool) -> None:
        super().__init__(body[: len(body) // 2] if breaks else body)
        self._breaks = breaks

    def read(self, size: int | None = -1, /) -> bytes:
        data = super().read(size)
        if self._breaks and (size in (None, -1) or not data):
            raise urllib3.exceptions.ProtocolError("the peer closed the connection in the body")
        return data

    def readinto(self, buffer: Any, /) -> int:
        count = super().readinto(buffer)
        if self._breaks and count == 0:
            raise urllib3.exceptions.ProtocolError("the peer closed the connection in the body")
        return count

    def stream(self, *args: object, **kwargs: object) -> Iterator[bytes]:
        yield self.read()


def _send(front: Front, request: AWSPreparedRequest) -> AWSResponse:
    body = request.body or b""
    data = bytes(body) if isinstance(body, bytes | bytearray) else body.read()
    headers = {
        name: value.decode() if isinstance(value, bytes) else value
        for name, value in request.headers.items()
    }
    answer = front.serve(Asked(method=request.method, url=request.url, headers=headers, body=data))
    if answer.wrong is Wrong.SILENT:
        raise ReadTimeoutError(endpoint_url=request.url)
    is_cut = answer.wrong is Wrong.CUT and not request.stream_output  # the session reads it whole
    if answer.wrong is Wrong.RESET or is_cut:
        raise ConnectionClosedError(endpoint_url=request.url)
    length = {"Content-Length": str(len(answer.body))}
    known = {n: v for n, v in answer.headers.items() if n.lower() != "content-length"}
    raw = _Raw(answer.body, breaks=answer.wrong is Wrong.CUT)
    return AWSResponse(request.url, answer.status, HeadersDict({**known, **length}), raw)  # type: ignore[arg-type]


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def _serve(self) -> None:
        front: Front = self.server.front  # type: ignore[attr-defined]
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        url = f"http://{self.headers['Host']}{self.path}"
        answer = front.serve(
            Asked(method=self.command, url=url, headers=dict(self.headers.items()), body=body)
        )
        if answer.wrong is Wrong.SILENT:
            if front.is_silent:
                select.select([self.connection], [], [], SILENCE_S_MAX)  # until the client hangs up
            self.close_connection = True
        elif answer.wrong is Wrong.RESET:
            now = struct.pack("ii", 1, 0)  # closes with a reset instead of a farewell
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, now)
            self.close_connection = True
        else:
            self._answer(answer)

    do_GET = do_PUT = _serve  # noqa: N815 - the base class's names

    def _answer(self, answer: Answer) -> None:
        self.send_response(answer.status)
        for name, value in answer.headers.items():
            if name.lower() not in ("content-length", "transfer-encoding", "connection"):
                self.send_header(name, value)
        self.send_header("Content-Length", str(len(answer.body)))
        self.end_headers()
        self.close_connection = answer.wrong is Wrong.CUT
        half = answer.body[: len(answer.body) // 2]
        with suppress(ConnectionError):  # on a busy machine the client may have given up
            self.wfile.write(half if self.close_connection else answer.body)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base class's name
        """Say nothing."""
