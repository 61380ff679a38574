"""What a web server of ours answers, the board and Dagster's UI: by whom it is asked, and how.

Bound to 127.0.0.1 they ask for no password. But any web page that a person has open can let that
browser ask them. What such a request cannot hide is refused:

- `Host` names another machine: the page made a name of its own resolve to 127.0.0.1 (DNS rebinding);
- `Origin` or `Sec-Fetch-Site` names another page, WebSockets included; only a link may lead here;
- it would change something by GET, as an image can, or by a POST of the kinds that a browser sends to
  anybody without asking (https://fetch.spec.whatwg.org/#cors-safelisted-request-header); but for a form
  whose `Origin` is this server.

Who serves others, through a proxy that asks for a password, names the host by which they come. A server
that other machines reach lets in who has its password, or whom a proxy named in a header.
"""

from __future__ import annotations

import base64
import binascii
import hmac
import ipaddress
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from urllib.parse import parse_qs, urlsplit

from tracks_dagster.track.errors import InvalidInput

PASSWORD = "TRACKS_BOARD_PASSWORD"  # never an option: a process's arguments are seen by all users
HOSTS = frozenset({"127.0.0.1", "localhost", "[::1]"})  # with any port: a tunnel has one of its own
READS = ("GET", "HEAD")
GRAPHQL = "/graphql"  # of Dagster's UI: what it is asked there may change something
BY_PREFLIGHT = ("application/json", "application/graphql")  # a browser asks before it sends these
FORM = "application/x-www-form-urlencoded"

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
        """Return the only value of a header; "," between several, which is never allowed."""
        return ",".join(self.headers.get(name, (default,))).strip()


@dataclass(frozen=True, slots=True, kw_only=True)
class Visitors:
    """Who is let in. hosts: names by which others come, beside this machine's.

    password: asked of each request, as the password of HTTP's Basic scheme or as a Bearer token; empty:
    of nobody. user_header: a header without which nobody is let in, as a proxy sets it that knows who
    asks; empty: none.
    """

    hosts: frozenset[str] = frozenset()
    password: str = field(default="", repr=False)
    user_header: str = ""


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


def check_listening(address: str, visitors: Visitors) -> None:
    """Raise InvalidInput for an address that other machines reach where anybody would be let in."""
    if _is_loopback(address):
        return
    if not visitors.hosts:
        raise InvalidInput(
            f"On {address} others come by another name; give it: --allow-host runs.example.com."
        )
    if not (visitors.password or visitors.user_header):
        raise InvalidInput(
            f"On {address} everybody who reaches the port would read every run. Set {PASSWORD} in the "
            "environment, or name the header in which your proxy says who asks: --user-header "
            "X-Forwarded-User."
        )


def check_writing(address: str, visitors: Visitors) -> None:
    """Raise InvalidInput where others could change something and nobody would know who."""
    if (visitors.hosts or not _is_loopback(address)) and not visitors.user_header:
        raise InvalidInput(
            "With --write the record names who did it, and others come without a name. Give the header "
            "in which your proxy says who asks, --user-header X-Forwarded-User, or leave --write out."
        )


def _is_loopback(address: str) -> bool:
    """Whether only this machine reaches the address; raises InvalidInput for what is not one."""
    try:
        return ipaddress.ip_address(address).is_loopback
    except ValueError as error:
        raise InvalidInput(
            f"{address!r} is not an IP address to listen on; give 127.0.0.1, 0.0.0.0, or one of this "
            "machine's."
        ) from error


def host_of(url: str) -> frozenset[str]:
    """Return the host of an address that a person set, where the server is reached too."""
    name = urlsplit(url).hostname if url else None
    return frozenset() if name is None else frozenset({f"[{name}]" if ":" in name else name})


def refuse(asked: Asked, visitors: Visitors, *, only_reads: bool) -> Refusal | None:
    """Return why a request is not let in; None where it is. only_reads: nothing but GET and HEAD."""
    host = asked.header("host").lower()
    found = _HOST.fullmatch(host)
    if found is None or found["name"] not in HOSTS.union(visitors.hosts):
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
    if visitors.user_header and not _names_one(asked, visitors.user_header.lower()):
        words = f"The proxy did not name one who asks, by the header {visitors.user_header}."
        return Refusal(status=403, words=words)
    if visitors.password and not _has_password(asked, visitors.password):
        realm = {"WWW-Authenticate": 'Basic realm="tracks", charset="UTF-8"'}
        return Refusal(status=401, words="Give the password; any user name will do.", headers=realm)
    if asked.method is None:
        return None
    if asked.method in READS:
        asks = asked.path.rstrip("/").endswith(GRAPHQL) and "query" in parse_qs(asked.query)
        words = "Ask by POST, with the Content-Type application/json: nothing is changed by GET."
        return Refusal(status=405, words=words, headers={"Allow": "POST"}) if asks else None
    if only_reads:
        words = (
            "The board only reads: GET and HEAD. The command line is what changes something, or a "
            "board that was started with --write."
        )
        return Refusal(status=405, words=words, headers={"Allow": ", ".join(READS)})
    kind = asked.header("content-type").partition(";")[0].strip().lower()
    is_own_form = kind == FORM and bool(
        asked.headers.get("origin")
    )  # which is this server: see above
    if kind not in BY_PREFLIGHT and not is_own_form:
        words = "Ask with the Content-Type application/json, or by a form that names its Origin."
        return Refusal(status=415, words=words)
    return None


def _names_one(asked: Asked, header: str) -> bool:
    """Whether exactly one value came: of a second one nobody knows who set it."""
    values = asked.headers.get(header, ())
    return len(values) == 1 and bool(asked.header(header))


def _has_password(asked: Asked, password: str) -> bool:
    scheme, _, given = asked.header("authorization").partition(" ")
    found = given.strip().encode("latin-1", "replace")  # the bytes as they came
    if scheme.lower() == "basic":
        try:
            found = base64.b64decode(found, validate=True).partition(b":")[2]
        except (binascii.Error, ValueError):
            return False
    elif scheme.lower() != "bearer":
        return False
    return hmac.compare_digest(found, password.encode())


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
