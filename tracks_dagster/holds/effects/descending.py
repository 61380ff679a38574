"""What of a run descends from a source in quarantine, as it is told to people.

Never refuses: where another track that it rests on cannot be read, that is said in its place.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from tracks_dagster.holds.clean_start import CleanStart, NothingClean, clean_start
from tracks_dagster.holds.effects.clean_starts import withheld_of
from tracks_dagster.holds.effects.quarantines import Marks, Quarantined, Quarantines
from tracks_dagster.ledger.effects.tracks import Tracks
from tracks_dagster.track.errors import TrackBroken
from tracks_dagster.track.states.checkpoints import CheckpointRef
from tracks_dagster.track.states.run_state import RunState

STEPS_MAX = 10  # of a run, the newest, that are named


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """What of a run nothing new starts from.

    sources: manifest sha256 → those in quarantine that the checkpoint is or descends from.
    resume_target: what a next attempt goes on from all the same; None: nothing. sentences: one a
    source, oldest first.
    """

    sources: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    resume_target: CheckpointRef | None = None
    sentences: tuple[str, ...] = ()


def read_held(tracks: Tracks, state: RunState) -> Held:
    """Return what of the run is, or descends from, a source in quarantine."""
    quarantines = Quarantines(tracks)
    try:
        checkpoints = quarantines.of_checkpoints(state)
        start = next_start(quarantines, state)
        found = {**quarantines.of_code(state.declared.code), **quarantines.of_run(state)}
    except TrackBroken as error:
        return Held(resume_target=state.resumes_from, sentences=(not_known(error),))
    for marks in checkpoints.values():
        found.update(marks)
    oldest_first = sorted(found.items(), key=lambda item: (item[1].at, item[1].track, item[1].seq))
    return Held(
        sources={
            key: tuple(m.source for m in marks.values()) for key, marks in checkpoints.items()
        },
        resume_target=start.resume if isinstance(start, CleanStart) else None,
        sentences=tuple(_told(state, checkpoints, text, mark) for text, mark in oldest_first),
    )


def next_start(quarantines: Quarantines, state: RunState) -> CleanStart | NothingClean:
    """Return where the run's next attempt may begin, as far as quarantines go; raises TrackBroken."""
    withheld = withheld_of(quarantines, state)
    if withheld.run is not None:
        return NothingClean(why=withheld.run)
    return clean_start(state, state.resumes_from, withheld, source_withdrawn=None)


def not_known(error: TrackBroken) -> str:
    """Say that it cannot be told what is in quarantine."""
    return f"Whether it descends from a source in quarantine is not known: {error}"


def _told(state: RunState, checkpoints: Mapping[str, Marks], text: str, mark: Quarantined) -> str:
    """Name the source, and the steps of the run's checkpoints that nothing starts from for it."""
    steps = [
        str(c.ref.step)
        for c in state.checkpoints
        if text in checkpoints.get(c.ref.manifest_sha256, {})
    ]
    older = len(steps) - STEPS_MAX
    named = ", ".join(steps[-STEPS_MAX:]) + (f" and {older} older ones" if older > 0 else "")
    held = f" Nothing new starts from what was saved at step {named}." if steps else ""
    return f"{mark.source} {mark.own_words}{held}"
