"""By whom and how a web server of ours may be asked."""

from __future__ import annotations

from base64 import b64encode

import pytest

from tracks_dagster.home.admission import (
    Asked,
    Refusal,
    Visitors,
    check_hosts,
    check_listening,
    host_of,
    refuse,
)
from tracks_dagster.track.errors import InvalidInput

OWN = "127.0.0.1:3000"
JSON = "application/json"


def answer(
    method: str | None = "GET",
    path: str = "/",
    query: str = "",
    *,
    hosts: tuple[str, ...] = (),
    only_reads: bool = False,
    visitors: Visitors | None = None,
    **headers: str | list[str],
) -> int:
    """Return the status of a refusal, 200 where there is none; `Host` is this machine by default."""
    given = {"host": OWN, **{name.replace("_", "-"): value for name, value in headers.items()}}
    values = {name: [value] if isinstance(value, str) else value for name, value in given.items()}
    asked = Asked(method=method, path=path, query=query, headers=values)
    found = refuse(asked, visitors or Visitors(hosts=frozenset(hosts)), only_reads=only_reads)
    return 200 if found is None else found.status


@pytest.mark.parametrize(
    "host",
    ["127.0.0.1", OWN, "localhost:9", "LOCALHOST", "[::1]", "[::1]:3001", "runs.example.com:8080"],
)
def test_names_of_this_machine_and_those_allowed_are_answered_with_any_port(host: str) -> None:
    assert answer(host=host, hosts=("runs.example.com",)) == 200


@pytest.mark.parametrize(
    "host",
    [
        *(
            "evil.example",
            "evil.example:3001",
            "127.0.0.1.evil.example",
            "localhost.evil",
            "10.0.0.5",
        ),
        *("", " ", "127.0.0.1:3001,evil.com", "evil.com,127.0.0.1:3001", "127.0.0.1:80@evil.com"),
        *("evil.com@127.0.0.1", "127.0.0.1:port", "127.0.0.1:", "localhost.:3000", "[::1", "::1"),
        *("[::ffff:1]", "127.1", "2130706433", "0.0.0.0", "127.0.0.1/x", "127.0.0.1 evil.com"),
        *("[::1].evil.com", "localhost:3000:80", "xlocalhost", "other.runs.example.com"),
        ["127.0.0.1", "evil.com"],
        ["127.0.0.1", "127.0.0.1"],
        [],
    ],
)
def test_a_name_that_somebody_made_resolve_to_this_machine_is_refused(
    host: str | list[str],
) -> None:
    assert answer(host=host, hosts=("runs.example.com",)) == 421
    assert answer(None, "/graphql", host=host) == 421


@pytest.mark.parametrize("method", ["GET", "POST", None])
@pytest.mark.parametrize(
    ("host", "origin", "status"),
    [
        (OWN, f"http://{OWN}", 200),
        ("LOCALHOST:3000", "http://localhost:3000", 200),
        ("[::1]:3000", "http://[::1]:3000", 200),
        ("runs.example.com", "https://runs.example.com", 200),
        ("runs.example.com:443", "https://runs.example.com", 200),
        (OWN, "http://evil.example.com", 403),
        (OWN, "http://127.0.0.1:3001", 403),  # another server of this machine
        (OWN, "http://localhost:3000", 403),
        (OWN, "http://127.0.0.1", 403),
        (OWN, "null", 403),
        (OWN, "", 403),
        (OWN, "file://", 403),
        (OWN, f"chrome-extension://{OWN}", 403),
        (OWN, f"http://{OWN}, http://evil.com", 403),
        (OWN, f"http://{OWN}.evil.com", 403),
        (OWN, f"http://evil.com@{OWN}", 403),
        (OWN, [f"http://{OWN}", "http://evil.com"], 403),
        ("runs.example.com", "https://evil.runs.example.com", 403),
    ],
)
def test_a_page_of_another_origin_is_refused_by_every_method(
    method: str | None, host: str, origin: str | list[str], status: int
) -> None:
    given = {"host": host, "origin": origin, "content_type": JSON}
    assert answer(method, "/graphql", hosts=("runs.example.com",), **given) == status


@pytest.mark.parametrize(
    ("method", "site", "mode", "dest", "status"),
    [
        ("GET", "none", "navigate", "document", 200),  # typed
        ("GET", "same-origin", "cors", "empty", 200),
        ("GET", "cross-site", "navigate", "document", 200),  # a link in a mail
        ("GET", "same-site", "navigate", "document", 200),  # from the board, whose port is another
        ("GET", "cross-site", "no-cors", "image", 403),
        ("GET", "cross-site", "no-cors", "script", 403),
        ("GET", "same-site", "cors", "empty", 403),
        ("GET", "cross-site", "navigate", "iframe", 403),
        ("POST", "cross-site", "navigate", "document", 403),  # a form
        ("GET", "anything", "", "", 403),
    ],
)
def test_of_another_page_only_a_link_leads_here(
    method: str, site: str, mode: str, dest: str, status: int
) -> None:
    given = {"sec_fetch_site": site, "sec_fetch_mode": mode, "sec_fetch_dest": dest}
    assert answer(method, content_type=JSON, **given) == status


@pytest.mark.parametrize(
    ("method", "path", "query", "kind", "status"),
    [
        ("GET", "/graphql", "query=mutation%7BsetNuxSeen%7D", "", 405),
        ("GET", "/graphql/", "%71uery=mutation{setNuxSeen}", "", 405),
        ("GET", "/prefix/graphql", "variables=%7B%7D&query=x", "", 405),
        ("HEAD", "/graphql", "query=x", "", 405),
        ("GET", "/graphql", "", "", 200),  # the page on which one writes queries
        ("GET", "/runs", "query=x", "", 200),
        ("POST", "/graphql", "", JSON, 200),
        ("POST", "/graphql", "", "application/json; charset=utf-8", 200),
        ("POST", "/graphql", "", "application/graphql", 200),
        ("POST", "/graphql", "query=mutation%7BsetNuxSeen%7D", "", 415),
        ("POST", "/graphql", "", "text/plain", 415),
        ("POST", "/graphql", "", "text/plain; application/json", 415),
        ("POST", "/graphql", "", "multipart/form-data; boundary=x", 415),
        ("POST", "/graphql", "", "application/x-www-form-urlencoded", 415),
        ("POST", "/report_asset_materialization/x", "", "", 415),
    ],
)
def test_nothing_is_changed_but_by_what_a_browser_does_not_send_to_anybody(
    method: str, path: str, query: str, kind: str, status: int
) -> None:
    more = {"content_type": kind} if kind else {}
    assert answer(method, path, query, **more) == status


FORM = "application/x-www-form-urlencoded"


@pytest.mark.parametrize(
    ("origin", "status"),
    [
        (f"http://{OWN}", 200),
        ("http://localhost:3000", 403),
        ("https://evil.example", 403),
        ("null", 403),
        ("", 403),
        (None, 415),
    ],
)
def test_a_form_is_taken_from_a_page_of_the_same_server_alone(
    origin: str | None, status: int
) -> None:
    named = {} if origin is None else {"origin": origin}
    assert answer("POST", "/runs/r/acts/stop", content_type=FORM, **named) == status


def test_who_is_named_twice_is_not_let_in() -> None:
    visitors = Visitors(user_header="X-User")
    assert answer(visitors=visitors, x_user="ann") == 200
    assert answer(visitors=visitors, x_user=["ann", "bob"]) == 403
    assert answer(visitors=visitors, x_user="") == 403


def test_the_board_is_only_read() -> None:
    found = refuse(
        Asked(method="POST", path="/", query="", headers={"host": [OWN], "content-type": [JSON]}),
        Visitors(),
        only_reads=True,
    )
    assert found == Refusal(
        status=405,
        words="The board only reads: GET and HEAD. The command line is what changes something, or a "
        "board that was started with --write.",
        headers={"Allow": "GET, HEAD"},
    )


def test_a_host_is_a_name_without_scheme_and_port() -> None:
    assert check_hosts(["Runs.example.com", "[::2]"]) == {"runs.example.com", "[::2]"}
    for wrong in ("http://x", "x:80", "", "*", "x y", "x,y"):
        with pytest.raises(InvalidInput, match="is not a name of a host"):
            check_hosts([wrong])
    assert host_of("https://Runs.example.com:8443/x") == {"runs.example.com"}
    assert host_of("http://[::2]:3000") == {"[::2]"}
    assert host_of("") == set()


AS_IT_COMES = "grün:9".encode().decode("latin-1")  # a header's bytes, as a server reads them
BASIC = f"Basic {b64encode('ann:grün:9'.encode()).decode()}"


@pytest.mark.parametrize(
    ("authorization", "status"),
    [
        (BASIC, 200),
        (f"Bearer {AS_IT_COMES}", 200),
        (f"bearer  {AS_IT_COMES}", 200),
        ("", 401),
        ("grün:9", 401),
        ("Bearer grün:", 401),
        ("Basic !!!", 401),
        (f"Basic {b64encode(b'grn:9').decode()}", 401),
        (f"{BASIC},{BASIC}", 401),
    ],
)
def test_a_password_is_asked_of_each_request_before_anything_else_is_said(
    authorization: str, status: int
) -> None:
    asked = {"authorization": authorization} if authorization else {}
    visitors = Visitors(password="grün:9")
    assert answer(visitors=visitors, **asked) == status
    assert answer("POST", visitors=visitors, only_reads=True, **asked) == (
        405 if status == 200 else 401
    )
    assert "9" not in repr(visitors)


def test_only_whom_the_proxy_names_is_let_in() -> None:
    visitors = Visitors(user_header="X-Forwarded-User")
    assert answer(visitors=visitors, x_forwarded_user="ann") == 200
    assert answer(visitors=visitors) == 403
    assert answer(visitors=visitors, x_forwarded_user=" ") == 403


@pytest.mark.parametrize(
    ("address", "visitors", "words"),
    [
        ("0.0.0.0", Visitors(password="p"), "give it: --allow-host"),
        ("0.0.0.0", Visitors(hosts=frozenset({"x"})), "TRACKS_BOARD_PASSWORD"),
        ("::", Visitors(hosts=frozenset({"x"})), "--user-header"),
        ("myhost", Visitors(), "is not an IP address"),
    ],
)
def test_others_are_answered_only_by_name_and_only_who_may(
    address: str, visitors: Visitors, words: str
) -> None:
    with pytest.raises(InvalidInput, match=words):
        check_listening(address, visitors)


def test_this_machine_needs_neither() -> None:
    for address in ("127.0.0.1", "::1", "127.8.0.1"):
        check_listening(address, Visitors())
    check_listening("0.0.0.0", Visitors(hosts=frozenset({"x"}), user_header="X-User"))
