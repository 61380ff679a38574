"""What a project's code was certified by: a pure fold over the track of that code.

One track for each code, named by its sha256: who certifies it reads a few records, however often the
code changes. Which of them counts, `attempts.effects.gates` says.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import datetime

from tracks_dagster.track.bodies import CodeCertified
from tracks_dagster.track.body_json import body_of
from tracks_dagster.track.errors import TrackBroken
from tracks_dagster.track.records import Kind, Record


@dataclass(frozen=True, slots=True, kw_only=True)
class Certificate:
    """One `code_certified`."""

    seq: int
    at: datetime
    body: CodeCertified


@dataclass(frozen=True, slots=True, kw_only=True)
class CodeState:
    """Every certificate of one code, oldest first. `head` is the last record folded."""

    head: Record
    code_sha256: str
    certificates: tuple[Certificate, ...]


def fold(records: Iterable[Record], state: CodeState | None = None) -> CodeState | None:
    """Return the state after `records`, starting from `state`; None for an empty track."""
    for record in records:
        state = apply(state, record)
    return state


def apply(state: CodeState | None, record: Record) -> CodeState:
    """Return the state after one more record; raises TrackBroken for one that cannot come next."""
    match record.kind:
        case Kind.CODE_CERTIFIED:
            body = body_of(CodeCertified, record)
            if state is not None and body.code_sha256 != state.code_sha256:
                raise TrackBroken(f"Record {record.seq} certifies other code than those before it.")
            before = state.certificates if state is not None else ()
            added = Certificate(seq=record.seq, at=record.at, body=body)
            return CodeState(
                head=record, code_sha256=body.code_sha256, certificates=(*before, added)
            )
        case Kind.NOTE | Kind.ALERT if state is not None:
            return replace(state, head=record)
        case _:
            raise TrackBroken(
                f"Record {record.seq} ({record.kind}) does not belong there in the track of a code."
            )
