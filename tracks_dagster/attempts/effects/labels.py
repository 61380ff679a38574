"""Labels of a run: its tags, its name for people, and the archive."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable

from tracks_dagster.ledger.effects.tracks import Tracks
from tracks_dagster.track.bodies import RunLabelled
from tracks_dagster.track.errors import InvalidInput
from tracks_dagster.track.records import Draft, Kind, Record
from tracks_dagster.track.states.run_state import RunState
from tracks_dagster.track.text.safe_text import check_words

TAGS_MAX = 32  # of one run
NAME_MAX = 120  # characters of a name for people
_TAG = re.compile(r"[A-Za-z0-9][\w.-]{0,39}")


def label(
    tracks: Tracks,
    run_id: str,
    *,
    by: str,
    why: str = "",
    added: Collection[str] = (),
    removed: Collection[str] = (),
    called: str | None = None,
    is_archived: bool | None = None,
) -> Record | None:
    """Append what of these changes the run; None where it is so already.

    called: its name for people, "" to take it away; None leaves it, as of `is_archived`. Raises
    UnknownRun, and InvalidInput for what cannot be a tag or a name, and for a run that trains and is to
    be archived.
    """
    check_words({"by": by, **({"why": why} if why else {}), **({"name": called} if called else {})})
    if called is not None and len(called) > NAME_MAX:
        raise InvalidInput(f"A name has at most {NAME_MAX} characters; this one has {len(called)}.")
    if both := sorted({*added} & {*removed}):
        raise InvalidInput(f"{both[0]} is given and taken away; choose one.")
    wanted, unwanted = ({*map(_check_tag, tags)} for tags in (added, removed))
    tracks.run(run_id)  # raises for an unknown run, with the nearest id

    def choose(state: RunState | None) -> Draft | None:
        assert state is not None, "it was there, and no run goes away"
        labels = state.labels
        if is_archived and state.open_attempt is not None:
            raise InvalidInput(
                f"{run_id} trains, so it is not archived; `tracks stop {run_id} --why …` ends it first."
            )
        if len({*labels.tags, *wanted} - unwanted) > TAGS_MAX:
            raise InvalidInput(f"A run has at most {TAGS_MAX} tags; take one away with -TAG.")
        is_put_away = state.archived_at is not None
        body = RunLabelled(
            by=by,
            why=why,
            added=tuple(sorted(wanted - {*labels.tags})),
            removed=tuple(sorted(unwanted & {*labels.tags})),
            called=None if called == labels.name else called,
            is_archived=None if is_archived is is_put_away else is_archived,
        )
        is_change = body.added or body.removed or (body.called, body.is_archived) != (None, None)
        return tracks.draft(Kind.RUN_LABELLED, body) if is_change else None

    return tracks.decide_run(run_id, choose)


def given_and_taken(tags: Iterable[str]) -> tuple[list[str], list[str]]:
    """Return the tags to give, and of `-TAG` the ones to take away."""
    given: list[str] = []
    taken: list[str] = []
    for tag in tags:
        (taken if tag.startswith("-") else given).append(tag.removeprefix("-"))
    return given, taken


def _check_tag(tag: str) -> str:
    """Return it; raises InvalidInput for what is not a tag."""
    if _TAG.fullmatch(tag) is None:
        raise InvalidInput(
            f"{tag[:60]!r} is not a tag: write 1 to 40 letters, digits, '_', '-' or '.', the first one "
            "a letter or a digit."
        )
    return tag
