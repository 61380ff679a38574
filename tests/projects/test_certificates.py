"""What a project's code was certified by: the record, its rows, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest

from tests.histories import Grown
from tracks_dagster.ledger.effects.projector import Projector
from tracks_dagster.ledger.effects.tracks import Tracks
from tracks_dagster.ledger.ports import Ledger
from tracks_dagster.projects.effects.certificates import FINDINGS_MAX, certificates, certify
from tracks_dagster.track.bodies import CodeCertified, Note
from tracks_dagster.track.errors import InvalidInput, TrackBroken
from tracks_dagster.track.names import code_track
from tracks_dagster.track.records import Kind, Record, sha256_hex
from tracks_dagster.track.states import code_state
from tracks_dagster.track.states.code_state import CodeState
from tracks_dagster.track.track import certificate_report_key

CODE, OTHER = "a" * 64, "b" * 64
GREEN: dict[str, Any] = {
    "what": "tests",
    "code_sha256": CODE,
    "project": "gpt",
    "passed": 12,
    "failed": 0,
    "by": "ann",
    "where": "node-1",
}


def test_a_certificate_is_a_record_and_a_row(tracks: Tracks, ledger: Ledger) -> None:
    certify(tracks, **GREEN, scope="pytest --tracks", report=b"all of it")
    state = tracks.find_code(CODE)
    assert state is not None
    [certificate] = state.certificates
    assert certificate.body.is_green
    assert certificate.body.report_sha256 == sha256_hex(b"all of it")
    key = certificate_report_key(CODE, sha256_hex(b"all of it"))
    assert tracks.store.get(key) == b"all of it"
    [row] = certificates(ledger, CODE)
    assert (row["what"], row["is_green"], row["passed_count"]) == ("tests", True, 12)
    assert (row["certified_by"], row["scope"]) == ("ann", "pytest --tracks")
    assert certificates(ledger, OTHER) == []


def test_the_newest_comes_first_and_a_red_one_is_recorded_too(
    tracks: Tracks, ledger: Ledger
) -> None:
    certify(tracks, **GREEN)
    certify(tracks, **{**GREEN, "failed": 1})
    assert [row["is_green"] for row in certificates(ledger, CODE)] == [False, True]


def test_many_runs_of_the_tests_do_not_hide_the_one_conformance_run(
    tracks: Tracks, ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tracks_dagster.projects.effects.certificates.CERTIFICATES_MAX", 2)
    certify(tracks, **{**GREEN, "what": "conform"})
    for _ in range(3):
        certify(tracks, **GREEN)
    found = [(row["what"], row["seq"]) for row in certificates(ledger, CODE)]
    assert found == [("tests", 3), ("tests", 2), ("conform", 0)]


def test_a_reindex_makes_the_same_rows(tracks: Tracks, ledger: Ledger) -> None:
    certify(tracks, **GREEN, findings=())
    before = certificates(ledger, CODE)
    Projector(tracks.store, ledger).reindex()
    assert certificates(ledger, CODE) == before


@pytest.mark.parametrize(
    ("changes", "is_green"),
    [
        ({}, True),
        ({"passed": 0}, False),  # nothing ran
        ({"failed": 1}, False),
        ({"left_out": 1}, False),  # deselected by hand
        ({"findings": ("sampler_reset",)}, False),
    ],
)
def test_green_is_what_ran_whole_and_passed(changes: dict[str, Any], is_green: bool) -> None:
    assert CodeCertified(**{**GREEN, **changes}).is_green is is_green


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"what": "test"}, "'test' is not a kind of certificate; did you mean tests?"),
        ({"code_sha256": "abc"}, "'abc' is not a sha256 of stored code"),
        ({"failed": -1}, "12 passed, -1 failed and 0 left out are not counts"),
        ({"report": b"x" * (4 * 1024 * 1024 + 1)}, "The report has 4194305 bytes"),
    ],
)
def test_what_cannot_be_recorded_is_refused_and_writes_nothing(
    changes: dict[str, Any], words: str, tracks: Tracks
) -> None:
    with pytest.raises(InvalidInput, match=words):
        certify(tracks, **{**GREEN, **changes})
    assert list(tracks.store.list("codes/")) == []


def test_a_record_holds_a_bounded_part_of_many_findings(tracks: Tracks) -> None:
    certify(tracks, **GREEN, findings=["x" * 1000] * 1000)
    state = tracks.find_code(CODE)
    assert state is not None
    assert len(state.certificates[0].body.findings) == FINDINGS_MAX


class Codes(Grown):
    """The track of one code."""

    def __init__(self) -> None:
        super().__init__(code_track(CODE))
        self.state: CodeState | None = None

    def _fold(self, record: Record) -> None:
        self.state = code_state.apply(self.state, record)


def test_the_track_of_a_code_is_of_that_code_alone() -> None:
    track = Codes().add(Kind.CODE_CERTIFIED, CodeCertified(**GREEN))
    track.add(Kind.NOTE, Note(by="ann", text="seen"))
    assert track.state is not None
    assert len(track.state.certificates) == 1
    with pytest.raises(TrackBroken, match="certifies other code"):
        track.add(Kind.CODE_CERTIFIED, CodeCertified(**{**GREEN, "code_sha256": OTHER}))
    with pytest.raises(TrackBroken, match="does not belong there in the track of a code"):
        Codes().add(Kind.NOTE, Note(by="ann", text="seen"))
