"""A small HTTP server in front of a real S3 server that misbehaves where a test says so.

It stands where the network does, so what is tested is the SDK's and our own reading of the wire.
"""

from __future__ import annotations

import http.client
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import urlsplit


@dataclass
class Misbehaviour:
    """What to do wrong. `count` is how many requests that meet `concerns` do; the rest pass.

    status, code: answer this instead of forwarding. drop_reply: forward, then cut the connection.
    drop_request: cut the connection at once. stall: answer only when the test ends.
    cut_body: announce the whole body and send half. strip: leave this header out when forwarding.
    checksum: say that this CRC32 arrived. clock_s: with `status`, how far the server's clock is ahead.
    delay_s: wait before forwarding. repeat: forward twice, as a network may, and give the second reply.
    reset_body: announce the whole body, send half, then reset the connection.
    """

    concerns: Callable[[str], bool] = lambda method: True
    count: int = 1_000_000
    status: int | None = None
    code: str = ""
    drop_reply: bool = False
    drop_request: bool = False
    stall: bool = False
    cut_body: bool = False
    strip: str | None = None
    checksum: str | None = None
    clock_s: float | None = None
    delay_s: float = 0.0
    repeat: bool = False
    reset_body: bool = False


@dataclass
class S3Double:
    """The running double: its address, what it does wrong, the methods that it was asked, and the
    headers of the last request by their names in small letters."""

    endpoint: str
    misbehaviour: Misbehaviour = field(default_factory=Misbehaviour)
    methods: list[str] = field(default_factory=list)
    headers: dict[str, str] = field(default_factory=dict)
    over: threading.Event = field(default_factory=threading.Event)

    def next(self, method: str) -> Misbehaviour:
        """Return what to do wrong with a request that came now."""
        wrong = self.misbehaviour
        if not wrong.concerns(method) or wrong.count <= 0:
            return Misbehaviour()
        wrong.count -= 1
        return wrong


@contextmanager
def s3_double(behind: str, make: Callable[[str], S3Double] = S3Double) -> Iterator[S3Double]:
    """Serve on a free port what the S3 server at `behind` says. make: the double of an address."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Handler)
    server.daemon_threads = True
    double = make(f"http://127.0.0.1:{server.server_port}")
    server.double, server.behind = double, urlsplit(behind).netloc  # type: ignore[attr-defined]
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    try:
        yield double
    finally:
        double.over.set()
        server.shutdown()
        thread.join()
        server.server_close()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def _serve(self) -> None:
        double: S3Double = self.server.double  # type: ignore[attr-defined]
        double.methods.append(self.command)
        double.headers = {name.lower(): value for name, value in self.headers.items()}
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        wrong = double.next(self.command)
        if wrong.delay_s:
            double.over.wait(timeout=wrong.delay_s)
        if wrong.stall:
            double.over.wait(timeout=60)
        if wrong.drop_request or wrong.stall:
            self._cut()
        elif wrong.status is not None:
            now = datetime.now(UTC) + timedelta(seconds=wrong.clock_s or 0)
            clock = "" if wrong.clock_s is None else f"<ServerTime>{now:%FT%TZ}</ServerTime>"
            error = f"<Error><Code>{wrong.code}</Code><Message>as asked</Message>{clock}</Error>"
            self._answer(wrong.status, {"Content-Type": "application/xml"}, error.encode())
        else:
            status, headers, reply = self._forward(body, wrong.strip)
            if wrong.repeat:
                status, headers, reply = self._forward(body, wrong.strip)
            if wrong.checksum is not None:
                headers = {**headers, "x-amz-checksum-crc32": wrong.checksum}
            if wrong.drop_reply:
                self._cut()
            else:
                is_cut = wrong.cut_body or wrong.reset_body
                self._answer(status, headers, reply, sent=len(reply) // (2 if is_cut else 1))
                if wrong.reset_body:
                    now = struct.pack("ii", 1, 0)  # closes with a reset instead of a farewell
                    self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, now)
                self.close_connection = is_cut

    do_GET = do_PUT = do_DELETE = do_HEAD = do_POST = _serve  # noqa: N815 - the base class's names

    def _forward(self, body: bytes, strip: str | None) -> tuple[int, dict[str, str], bytes]:
        headers = {
            name: value
            for name, value in self.headers.items()
            if name.lower() not in ((strip or "").lower(), "expect", "connection")
        }
        connection = http.client.HTTPConnection(self.server.behind, timeout=30)  # type: ignore[attr-defined]
        try:
            connection.request(self.command, self.path, body=body, headers=headers)
            reply = connection.getresponse()
            return reply.status, dict(reply.getheaders()), reply.read()
        finally:
            connection.close()

    def _answer(
        self, status: int, headers: dict[str, str], body: bytes, *, sent: int | None = None
    ) -> None:
        self.send_response(status)
        for name, value in headers.items():
            if name.lower() not in ("content-length", "transfer-encoding", "connection"):
                self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            with suppress(ConnectionError):  # the client may have given up
                self.wfile.write(body[:sent])

    def _cut(self) -> None:
        self.close_connection = True

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base class's name
        """Say nothing."""
