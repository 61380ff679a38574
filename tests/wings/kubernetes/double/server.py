"""The double's HTTP: sockets, chunks, and cutting them. What is said is the API's."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qsl, urlsplit

from tests.wings.kubernetes.double.answers import ApiError
from tests.wings.kubernetes.double.requests import Answer, Handle, Request

BODY_BYTES_MAX = 4 * 1024 * 1024
CONNECTIONS_MAX = 1024
IDLE_S_MAX = 120.0


class Server:
    """Serves on one port for its whole life, also after `restart`. token: what callers must bring."""

    def __init__(self, handle: Handle, *, token: str) -> None:
        self.handle, self.token = handle, token
        self.epoch = 0  # of streams: one that began in an earlier epoch is cut
        self._over = threading.Event()
        self._open: set[socket.socket] = set()
        self._lock = threading.Lock()
        self._stopping = False
        self.port = self._listen(0)

    def close(self) -> None:
        """Stop; every connection is cut, every thread gone."""
        self._over.set()
        self._stop()

    def restart(self, down_s: float = 0.0) -> None:
        """Cut every connection, refuse new ones for a while, and serve again on the same port."""
        self._stop()
        self._over.wait(down_s)
        if not self._over.is_set():
            self._listen(self.port)

    def break_streams(self) -> None:
        """Cut every open watch and followed log in the middle."""
        self.epoch += 1

    def enter(self, connection: socket.socket) -> bool:
        """Note a connection; False when there are too many."""
        with self._lock:
            if self._stopping or len(self._open) >= CONNECTIONS_MAX:
                return False
            self._open.add(connection)
            return True

    def leave(self, connection: socket.socket) -> None:
        """Forget a connection."""
        with self._lock:
            self._open.discard(connection)

    def pause(self, seconds: float) -> None:
        """Wait before a reply; a stop or a restart ends it."""
        epoch, until = self.epoch, time.monotonic() + seconds
        while self.epoch == epoch and time.monotonic() < until:
            self._over.wait(0.05)

    def _listen(self, port: int) -> int:
        self._stopping = False
        self._http = _Http(("127.0.0.1", port), _Handler)
        self._http.owner = self
        self._thread = threading.Thread(
            target=self._http.serve_forever, args=(0.02,), name="kube-double-http", daemon=True
        )
        self._thread.start()
        return self._http.server_port

    def _stop(self) -> None:
        self.epoch += 1
        self._http.shutdown()
        self._thread.join()
        with self._lock:
            self._stopping = True  # a connection that was taken a moment ago is cut as it enters
            for connection in self._open:
                with suppress(OSError):
                    connection.shutdown(socket.SHUT_RDWR)
        self._http.server_close()  # waits for the handlers' threads


class _Http(ThreadingHTTPServer):
    daemon_threads = False
    allow_reuse_address = True
    request_queue_size = 128
    owner: Server

    def handle_error(self, request: object, client_address: object) -> None:
        """A client that goes away in the middle is not an error of the double."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    timeout = IDLE_S_MAX
    server: _Http

    def setup(self) -> None:
        super().setup()
        if not self.server.owner.enter(self.connection):
            self._cut()

    def finish(self) -> None:
        self.server.owner.leave(self.connection)
        with suppress(OSError):
            super().finish()

    def log_message(self, *_: object) -> None:
        """Nothing on stderr."""

    def _serve(self) -> None:
        owner = self.server.owner
        epoch = owner.epoch
        alive = lambda: owner.epoch == epoch  # noqa: E731
        length = min(int(self.headers.get("Content-Length") or 0), BODY_BYTES_MAX)
        data = self.rfile.read(length)
        url = urlsplit(self.path)
        request = Request(
            method=self.command,
            path=url.path.rstrip("/"),
            query=dict(parse_qsl(url.query, keep_blank_values=True)),
            body=json.loads(data) if data else None,
            kind=self.headers.get("Content-Type") or "application/json",
        )
        try:
            if self.headers.get("Authorization") != f"Bearer {owner.token}":
                raise ApiError(401, "Unauthorized", "Unauthorized")
            answer = owner.handle(request, alive)
        except ApiError as error:
            answer = Answer(code=error.code, body=error.status())
        owner.pause(answer.wrong.delay_s)
        if answer.wrong.lose_reply:
            self._cut()
        elif answer.events is not None:
            self._stream(_lines(answer.events), "application/json", alive)
        elif answer.lines is not None:
            self._stream(answer.lines, "text/plain", alive)
        else:
            self._reply(answer)

    do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = _serve  # noqa: N815

    def _reply(self, answer: Answer) -> None:
        data = (answer.text or json.dumps(answer.body)).encode()
        self.send_response(answer.code)
        self.send_header("Content-Type", "text/plain" if answer.text else "application/json")
        self.send_header("Content-Length", str(len(data)))
        if answer.code in (429, 503):
            self.send_header("Retry-After", "1")
        self.end_headers()
        self.wfile.write(data)

    def _stream(self, lines: Iterator[bytes], kind: str, alive: object) -> None:
        self.send_response(200)
        self.send_header("Content-Type", kind)
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        for line in lines:
            self.wfile.write(b"%x\r\n%s\r\n" % (len(line), line))
        if alive():  # type: ignore[operator]
            self.wfile.write(b"0\r\n\r\n")
        else:
            self._cut()

    def _cut(self) -> None:
        self.close_connection = True
        with suppress(OSError):
            self.connection.shutdown(socket.SHUT_RDWR)


def _lines(events: Iterator[object]) -> Iterator[bytes]:
    for event in events:
        yield json.dumps(event).encode() + b"\n"
