"""Certificates: that a project's code passed its own tests, or `tracks conform`.

They stand by the sha256 of the code as it is stored with a run, so one changed line is code without a
certificate. The gates of stages ask for them (`attempts.effects.gates`).
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from tracks_dagster.ledger.effects.tracks import Tracks
from tracks_dagster.ledger.ports import Ledger
from tracks_dagster.track.bodies import CERTIFIES, CodeCertified
from tracks_dagster.track.errors import InvalidInput
from tracks_dagster.track.records import Json, Kind, Record, sha256_hex
from tracks_dagster.track.text.nearest import unknown
from tracks_dagster.track.track import certificate_report_key

FINDINGS_MAX = 50  # of a record; the report has them all
FINDING_CHARACTERS_MAX = 120
CERTIFICATES_MAX = 100  # of a kind, that are listed of a code
REPORT_BYTES_MAX = 4 * 1024 * 1024
_SHA256 = re.compile(r"[0-9a-f]{64}")


def certify(
    tracks: Tracks,
    *,
    what: str,
    code_sha256: str,
    project: str,
    passed: int,
    failed: int,
    by: str,
    where: str,
    left_out: int = 0,
    findings: Sequence[str] = (),
    scope: str = "",
    report: bytes | None = None,
) -> Record:
    """Append what a code was certified by, green or not: of a code the newest of each kind counts.

    what: TESTS or CONFORM. report: stored before the record. Raises InvalidInput, with nothing written.
    """
    if what not in CERTIFIES:
        raise InvalidInput(unknown("kind of certificate", what, list(CERTIFIES)))
    if not _SHA256.fullmatch(code_sha256):
        raise InvalidInput(f"{code_sha256!r} is not a sha256 of stored code: 64 hex digits.")
    if min(passed, failed, left_out) < 0:
        raise InvalidInput(
            f"{passed} passed, {failed} failed and {left_out} left out are not counts."
        )
    if report is not None and len(report) > REPORT_BYTES_MAX:
        raise InvalidInput(
            f"The report has {len(report)} bytes; at most {REPORT_BYTES_MAX} are stored."
        )
    named = [each[:FINDING_CHARACTERS_MAX] for each in findings[:FINDINGS_MAX]]
    body = CodeCertified(
        what=what,
        code_sha256=code_sha256,
        project=project,
        passed=passed,
        failed=failed,
        left_out=left_out,
        findings=tuple(named),
        scope=scope[:FINDING_CHARACTERS_MAX],
        report_sha256=None if report is None else sha256_hex(report),
        by=by,
        where=where,
    )
    if report is not None and body.report_sha256 is not None:
        tracks.store.put(certificate_report_key(code_sha256, body.report_sha256), report)
    return tracks.note_code(code_sha256, tracks.draft(Kind.CODE_CERTIFIED, body))


def certificates(ledger: Ledger, code_sha256: str) -> list[dict[str, Json]]:
    """Return the newest certificates of each kind of a code, newest first."""
    return ledger.query(_OF_CODE, {"code_sha256": code_sha256, "most": CERTIFICATES_MAX})


_OF_CODE = """
select * from certificates c where code_sha256 = :code_sha256 and :most > (
    select count(*) from certificates d
    where d.code_sha256 = c.code_sha256 and d.what = c.what and d.seq > c.seq)
order by seq desc
"""
