"""What a run is for, in a person's words: nothing is declared without them."""

from __future__ import annotations

from tracks_dagster.reading import open_tracks_to_read
from tracks_dagster.settings import Settings
from tracks_dagster.track.errors import InvalidInput, NothingYet
from tracks_dagster.track.states.run_state import RunState

EXAMPLE = '--intent "Does a wider model learn faster?"'


def intent_of(
    given: Settings, intent: str | None, *, run_id: str | None, drills: tuple[str, ...]
) -> str:
    """Return the intent that was given; else that of the run there is, or what a drill is for.

    Raises InvalidInput where a run would be declared that says nothing.
    """
    if intent is not None:
        return intent
    existing = None if run_id is None else _find(given, run_id)
    if existing is not None:
        return existing.declared.intent
    if drills:
        return f"Play the drill {', '.join(drills)}."
    raise InvalidInput(
        f"--intent is missing: say in a sentence what the run is for, for example {EXAMPLE}. It "
        "stands in the record, and `tracks search` finds it."
    )


def _find(given: Settings, run_id: str) -> RunState | None:
    try:
        return open_tracks_to_read(given).find_run(run_id)
    except NothingYet:
        return None
