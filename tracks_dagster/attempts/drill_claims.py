"""Which drills of a run have fired: a note in its track claims each, before it fires."""

from __future__ import annotations

from collections.abc import Iterable

from tracks_dagster.track.bodies import Drill, Note
from tracks_dagster.track.records import Kind, Record

BY = "drill"


def was_claimed(records: Iterable[Record], index: int) -> bool:
    """Whether the drill of that index in the declaration has fired, or was skipped."""
    notes = (record for record in records if record.kind is Kind.NOTE)
    return any(n.body["by"] == BY and n.body["data"].get("drill") == index for n in notes)


def claim_note(index: int, drill: Drill, *, skipped: str = "") -> Note:
    """Return the note that claims a drill; skipped: why it cannot be played here."""
    name = f"{drill.kind}@{drill.step}"
    if skipped:
        text = f"Drill {name} is skipped: {skipped}"
        return Note(by=BY, text=text, data={"drill": index, "skipped": skipped})
    grace = f" with {drill.grace_s:g} s of grace" if drill.kind == "preempt" else ""
    return Note(by=BY, text=f"Drill {name} fires{grace}.", data={"drill": index})
