"""Who gets messages in tests: a real HTTP server and a real mail server on this machine."""

from __future__ import annotations

import json
import socketserver
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@dataclass
class Hook:
    """A webhook: what it got, in order; what it answers, and how, the test may change at any time.

    hangs: it answers only when it is closed; asked: how often somebody came. Redirects lead to
    /elsewhere, which is counted apart. got_at: seconds since 1970.
    """

    url: str = ""
    status: int = 200
    words: str = "ok"
    hangs: bool = False
    asked: int = 0
    got_at: list[float] = field(default_factory=list)
    got: list[dict[str, Any]] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)
    elsewhere: int = 0
    closed: threading.Event = field(default_factory=threading.Event)

    @property
    def keys(self) -> list[str]:
        """The keys of what it got."""
        return [each["key"] for each in self.got]


@contextmanager
def hook_server(port: int = 0) -> Iterator[Hook]:
    """Serve one webhook on 127.0.0.1."""
    hook = Hook()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            length = int(self.headers.get("Content-Length", 0))
            body = self.rfile.read(length)
            hook.asked += 1
            if self.path.startswith("/elsewhere"):
                hook.elsewhere += 1
            if hook.hangs:
                hook.closed.wait(60)
                return
            if hook.status == 200:
                hook.got.append(json.loads(body))
                hook.got_at.append(time.time())
                hook.headers.append(dict(self.headers))
            self.send_response(hook.status)
            if 300 <= hook.status < 400:
                self.send_header("Location", f"{hook.url}/elsewhere")
            self.end_headers()
            self.wfile.write(hook.words.encode())

        do_GET = do_POST  # noqa: N815  # the base class looks it up by this name

        def log_message(self, *args: Any) -> None:
            """Print nothing."""

    class Server(ThreadingHTTPServer):
        daemon_threads = True

        def handle_error(self, request: Any, client_address: Any) -> None:
            """Say nothing of a caller that has gone."""

    with Server(("127.0.0.1", port), Handler) as server:
        hook.url = f"http://127.0.0.1:{server.server_address[1]}"
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        try:
            yield hook
        finally:
            hook.closed.set()
            server.shutdown()
            thread.join()


@dataclass
class Mailbox:
    """A mail server: whom each mail was for, and the mail; refuses every recipient of `refused`."""

    port: int = 0
    mails: list[tuple[list[str], str]] = field(default_factory=list)
    refused: set[str] = field(default_factory=set)


@contextmanager
def mail_server() -> Iterator[Mailbox]:
    """Serve SMTP on 127.0.0.1, as much of it as handing over a mail takes."""
    box = Mailbox()

    class Handler(socketserver.StreamRequestHandler):
        def handle(self) -> None:
            self.say("220 tests")
            recipients: list[str] = []
            while line := self.rfile.readline().decode().strip():
                verb = line[:4].upper()
                if verb == "RCPT":
                    address = line.partition("<")[2].partition(">")[0]
                    if address in box.refused:
                        self.say("550 no such user here")
                        continue
                    recipients.append(address)
                if verb == "DATA":
                    self.say("354 go on")
                    lines = []
                    while (text := self.rfile.readline().decode()) != ".\r\n":
                        lines.append(text)
                    box.mails.append((list(recipients), "".join(lines)))
                self.say("221 bye" if verb == "QUIT" else "250 ok")
                if verb == "QUIT":
                    return

        def say(self, text: str) -> None:
            self.wfile.write(f"{text}\r\n".encode())

    class Server(socketserver.ThreadingTCPServer):
        daemon_threads = True
        allow_reuse_address = True

    with Server(("127.0.0.1", 0), Handler) as server:
        box.port = server.server_address[1]
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        try:
            yield box
        finally:
            server.shutdown()
            thread.join()
