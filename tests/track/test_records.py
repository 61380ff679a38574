"""Records become bytes and come back; what is not a record is refused with its seq."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest

from tracks_dagster.track.errors import RecordTooLarge, TrackBroken
from tracks_dagster.track.json_text import RECORD_BYTES_MAX
from tracks_dagster.track.records import (
    COMMIT_BYTES_MAX,
    Draft,
    Kind,
    canonical_json,
    format_time,
    parse,
    parse_time,
    seal,
    sha256_hex,
)

AT = datetime(2026, 1, 31, 2, 0, 0, 5, tzinfo=UTC)
NOTE = Draft(uid="u1", kind=Kind.NOTE, body={"text": "größer", "by": "ann"})


def sealed(draft: Draft = NOTE, seq: int = 3) -> bytes:
    return seal(draft, seq=seq, at=AT, prev_sha256="ab")


def test_a_record_is_stored_as_sorted_utf8_json_without_spaces() -> None:
    assert (
        sealed()
        == (
            '{"at":"2026-01-31T02:00:00.000005Z","body":{"by":"ann","text":"größer"},"kind":"note",'
            '"prev_sha256":"ab","seq":3,"uid":"u1"}'
        ).encode()
    )


def test_a_record_of_an_attempt_names_it() -> None:
    draft = Draft(uid="u", kind=Kind.ATTEMPT_ENDED, body={}, attempt_id=2)
    assert b'"attempt_id":2,' in sealed(draft)
    assert parse(sealed(draft), seq=3).attempt_id == 2


def test_what_was_sealed_is_parsed_again_with_the_hash_of_its_bytes() -> None:
    record = parse(sealed(), seq=3)
    assert (record.seq, record.uid, record.at, record.kind) == (3, "u1", AT, Kind.NOTE)
    assert (record.attempt_id, record.prev_sha256) == (None, "ab")
    assert record.body == NOTE.body
    assert record.sha256 == sha256_hex(sealed())


def test_the_first_record_follows_nothing() -> None:
    data = seal(NOTE, seq=0, at=AT, prev_sha256=None)
    assert b'"prev_sha256":null' in data
    assert parse(data, seq=0).prev_sha256 is None


@pytest.mark.parametrize(
    ("kind", "limit"),
    [(Kind.NOTE, RECORD_BYTES_MAX), (Kind.CHECKPOINT_COMMITTED, COMMIT_BYTES_MAX)],
)
def test_a_record_may_fill_its_limit_and_not_exceed_it(kind: Kind, limit: int) -> None:
    frame = len(sealed(Draft(uid="u", kind=kind, body={"x": ""})))
    fits = Draft(uid="u", kind=kind, body={"x": "x" * (limit - frame)})
    assert len(sealed(fits)) == limit
    too_large = Draft(uid="u", kind=kind, body={"x": "x" * (limit - frame + 1)})
    with pytest.raises(RecordTooLarge, match=f"{limit + 1} bytes and the limit is {limit}"):
        sealed(too_large)


def test_bytes_count_not_characters() -> None:
    with pytest.raises(RecordTooLarge):
        sealed(Draft(uid="u", kind=Kind.NOTE, body={"x": "ü" * (RECORD_BYTES_MAX // 2)}))


def changed(**changes: Any) -> bytes:
    return json.dumps({**json.loads(sealed()), **changes}).encode()


def without(name: str) -> bytes:
    return json.dumps({k: v for k, v in json.loads(sealed()).items() if k != name}).encode()


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"{",
        b"null",
        b"[]",
        b"\xff\xfe",
        b"[" * 10_000,
        *[without(name) for name in ("seq", "uid", "at", "kind", "prev_sha256", "body")],
        changed(kind="no_such_kind"),
        changed(kind=["note"]),
        changed(at="2026-01-31 02:00:00"),
        changed(at="2026-01-31T02:00:00.000005+00:00"),
        changed(at=7),
        changed(at="0001-01-01T00:00:00+14:00"),
        changed(at="9999-12-31T23:59:59.999999-14:00"),
        changed(at="2026-06-30T23:59:60.000000Z"),
        changed(body={"text": "y" * RECORD_BYTES_MAX}),
        changed(body={"loss": float("nan")}),
        changed(body={"loss": 10**400}).replace(b"1" + b"0" * 400, b"1e400"),
        sealed()[:-1] + b',"seq":3}',
        changed(body=[]),
        changed(body="text"),
        changed(uid=7),
        changed(seq="3"),
        changed(attempt_id="2"),
        changed(attempt_id=True),
        changed(prev_sha256=7),
    ],
)
def test_what_is_not_a_record_is_a_broken_track_that_names_the_seq(data: bytes) -> None:
    with pytest.raises(TrackBroken, match="3"):
        parse(data, seq=3)


def test_a_record_in_another_ones_place_is_a_broken_track() -> None:
    with pytest.raises(TrackBroken, match="stored as 4 says that it is 3"):
        parse(sealed(), seq=4)


def test_a_kind_of_a_newer_version_says_what_to_do() -> None:
    with pytest.raises(TrackBroken, match="a newer one wrote it"):
        parse(changed(kind="attempt_teleported"), seq=3)


def test_a_field_that_a_newer_version_added_is_ignored() -> None:
    assert parse(changed(colour="blue"), seq=3).body == NOTE.body


@pytest.mark.parametrize("number", [float("nan"), float("inf")])
def test_what_json_cannot_hold_is_refused(number: float) -> None:
    with pytest.raises(ValueError, match="not JSON compliant"):
        canonical_json({"loss": number})


def test_half_a_surrogate_in_a_log_line_does_not_keep_an_attempt_from_being_closed() -> None:
    lines = {"lines": ["cannot open 'caf\udce9'", "größer 🚀"]}
    stored = canonical_json(lines)
    assert stored.decode() == '{"lines":["cannot open \'caf\\udce9\'","größer 🚀"]}'
    assert json.loads(stored) == lines


LATIN_1 = Draft(
    uid="u",
    kind=Kind.NOTE,
    body={"text": "caf\udce9 \0", "by": "größer 🚀", "data": {"a\udce9": ["\ud800", 1, None]}},
)
AS_VALID_TEXT = {
    "text": "caf\ufffd \ufffd",
    "by": "größer 🚀",
    "data": {"a\ufffd": ["\ufffd", 1, None]},
}


def test_a_draft_holds_no_text_that_is_not_utf8_and_no_nul() -> None:
    assert LATIN_1.body == AS_VALID_TEXT
    assert "caf\ufffd".encode() in sealed(LATIN_1)


@pytest.mark.parametrize("ensure_ascii", [True, False], ids=["escaped", "as bytes"])
def test_a_record_stored_before_with_half_a_surrogate_reads_as_valid_text(
    ensure_ascii: bool,
) -> None:
    body = {"text": "caf\udce9 \0", "by": "größer 🚀", "data": {"a\udce9": ["\ud800", 1, None]}}
    stored = {**json.loads(sealed()), "body": body}
    data = json.dumps(stored, ensure_ascii=ensure_ascii).encode("utf-8", "surrogatepass")
    record = parse(data, seq=3)
    assert record.body == AS_VALID_TEXT
    assert record.sha256 == sha256_hex(data)


@pytest.mark.parametrize(
    ("at", "text"),
    [
        (datetime(2026, 1, 31, 2, tzinfo=UTC), "2026-01-31T02:00:00.000000Z"),
        (
            datetime(2026, 1, 31, 2, tzinfo=timezone(timedelta(hours=5))),
            "2026-01-30T21:00:00.000000Z",
        ),
        (datetime(987, 6, 5, 4, 3, 2, 1, tzinfo=UTC), "0987-06-05T04:03:02.000001Z"),
    ],
)
def test_times_are_utc_text_that_sorts(at: datetime, text: str) -> None:
    assert format_time(at) == text
    assert parse_time(text) == at
    assert parse_time(text).utcoffset() == timedelta(0)


def test_a_time_without_a_zone_is_refused() -> None:
    with pytest.raises(ValueError, match="no time zone"):
        format_time(datetime(2026, 1, 31, 2))  # noqa: DTZ001 - that is the point


def test_drafts_and_records_can_be_kept_in_sets() -> None:
    other = Draft(uid="u1", kind=Kind.NOTE, body={"text": "another"})
    assert len({NOTE, NOTE, other}) == 2
    assert len({parse(sealed(), seq=3), parse(sealed(), seq=3)}) == 1
