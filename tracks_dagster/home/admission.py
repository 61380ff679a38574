"""What a web server of ours answers, the board and Dagster's UI: by whom it is asked, and how.

They have no password: they are bound to 127.0.0.1. But any web page that a person has open can let the
person's browser ask them. What such a request cannot hide is refused:

- `Host` names another machine: the page made a name of its own resolve to 127.0.0.1 (DNS rebinding);
- `Origin` or `Sec-Fetch-Site` names another page, WebSockets included; only a link may lead here;
- it would change something by GET, as an image can, or by a POST of the kinds that a browser sends to
  anybody without asking (https://fetch.spec.whatwg.org/#cors-safelisted-request-header).

Who serves others, through a proxy that asks for a password, names the host by which they come.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from urllib.parse import parse_qs, urlsplit

from tracks_dagster.track.errors import InvalidInput

HOSTS = frozenset({"127.0.0.1", "localhost", "[::1]"})  # with any port: a tunnel has one of its own
READS = ("GET", "HEAD")
GRAPHQL = "/graphql"  # of Dagster's UI: what it is asked there may change something
BY_PREFLIGHT = ("application/json", "application/graphql")  # a browser asks before it sends these

_HOST = re.compile(r"(?P<name>\[[0-9a-f:.]+\]|[a-z0-9._-]+)(?::\d{1,5})?", re.IGNORECASE)
_ORIGIN = re.compile(r"(?P<scheme>https?)://(?P<place>[^/?#@\s,]+)", re.IGNORECASE)
_PORTS = {"http": ":80", "https": ":443"}  # what a browser leaves out


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """A request. headers: by name in lower case, each value that came; method: None of a WebSocket."""

    method: str | None
    path: str
    query: str
    headers: Mapping[str, Collection[str]]

    def header(self, name: str, default: str = "") -> str:
        """Return the only value of a header; "," between several, which is none that is allowed."""
        return ",".join(self.headers.get(name, (default,))).strip()


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """What a request is answered that is not let in."""

    status: int
    words: str
    headers: Mapping[str, str] = field(default_factory=dict)


def check_hosts(hosts: Collection[str]) -> frozenset[str]:
    """Return names by which others may come, in lower case; raises InvalidInput for any other text."""
    for host in hosts:
        found = _HOST.fullmatch(host)
        if found is None or found["name"] != host:
            raise InvalidInput(
                f"{host!r} is not a name of a host; give one such as runs.example.com, without http:// "
                "and without a port."
            )
    return frozenset(host.lower() for host in hosts)


def host_of(url: str) -> frozenset[str]:
    """Return the host of an address that a person set, where the server is reached too."""
    name = urlsplit(url).hostname if url else None
    return frozenset() if name is None else frozenset({f"[{name}]" if ":" in name else name})


def refuse(asked: Asked, *, hosts: Collection[str], only_reads: bool) -> Refusal | None:
    """Return why a request is not let in; None where it is.

    hosts: names by which others come, beside this machine's. only_reads: nothing but GET and HEAD.
    """
    host = asked.header("host").lower()
    found = _HOST.fullmatch(host)
    if found is None or found["name"] not in HOSTS.union(hosts):
        words = (
            "This server answers to names of this machine only: open it as http://127.0.0.1 or "
            "http://localhost with its port; from another machine through `ssh -L`. Who reaches it by "
            "another name starts it with `--allow-host NAME`."
        )
        return Refusal(status=421, words=words)
    if not _is_own(asked.headers.get("origin", ()), host) or _is_embedded(asked):
        words = (
            "Another page asked for this. Open the address by itself, or follow a link to it. Behind a "
            "proxy: let it pass the header Host on as it came."
        )
        return Refusal(status=403, words=words)
    if asked.method is None:
        return None
    if asked.method in READS:
        asks = asked.path.rstrip("/").endswith(GRAPHQL) and "query" in parse_qs(asked.query)
        words = "Ask by POST, with the Content-Type application/json: nothing is changed by GET."
        return Refusal(status=405, words=words, headers={"Allow": "POST"}) if asks else None
    if only_reads:
        words = "The board only reads: GET and HEAD. The command line is what changes something."
        return Refusal(status=405, words=words, headers={"Allow": ", ".join(READS)})
    if asked.header("content-type").partition(";")[0].strip().lower() not in BY_PREFLIGHT:
        return Refusal(status=415, words="Ask with the Content-Type application/json.")
    return None


def _is_own(origins: Collection[str], host: str) -> bool:
    """Whether every origin that the request names is this server, by the name that it was asked by."""
    for origin in origins:
        found = _ORIGIN.fullmatch(origin)
        if found is None:  # "null" too: of a page that hides where it is from
            return False
        port = _PORTS[found["scheme"].lower()]
        if found["place"].lower().removesuffix(port) != host.removesuffix(port):
            return False
    return True


def _is_embedded(asked: Asked) -> bool:
    """Whether a browser asks for the content of another page, and not because of a link."""
    if asked.header("sec-fetch-site", "none") in ("none", "same-origin"):
        return False
    how = asked.header("sec-fetch-mode"), asked.header("sec-fetch-dest")
    return how != ("navigate", "document") or asked.method not in READS
