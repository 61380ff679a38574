"""Lineage: things by name, and how marks pass from one to the next through a run. Pure.

    snapshot, node, code ──▶ attempt ──▶ checkpoint ──▶ attempts that resume from it ──▶ …
                                             └──▶ eval ──▶ promotion

An attempt passes on what it did only through checkpoints that it saved after at least one step of its
own; one saved before that holds what was restored and nothing else. An attempt that resumed from an
earlier checkpoint than the one that carries a mark does not carry it. A quarantine changes no lineage:
bytes that nobody may resume from still hold what they hold.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeVar

from tracks_dagster.holds.hold import ThingKind
from tracks_dagster.track.bodies import CodeVersion
from tracks_dagster.track.errors import InvalidInput
from tracks_dagster.track.names import RUN_ID, RUN_ID_PATTERN, attempt_key, parse_attempt_key
from tracks_dagster.track.records import Json
from tracks_dagster.track.roles import GLOBAL_BATCH, Roles, value_of
from tracks_dagster.track.samples import SKIP_WINDOWS, skipped_blocks
from tracks_dagster.track.states.accounting import cursor_from
from tracks_dagster.track.states.checkpoints import CheckpointRef
from tracks_dagster.track.states.run_state import AttemptState, CheckpointState, RunState

Mark = TypeVar("Mark")  # of a source; always by the name of that

PREFIX_CHARACTERS_MIN = 6  # of a shortened sha256; git's own shortest is 4
COMMIT_CHARACTERS_MIN = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Thing:
    """One thing, written `kind:name`. name: as FORMS says; of a checkpoint `RUN@STEP`, `RUN/aNN@STEP`
    or its manifest's sha256; shortened ids are still to be looked up."""

    kind: ThingKind
    name: str

    def __str__(self) -> str:
        return f"{self.kind}:{self.name}"


FORMS = {  # kind → how its name is written, and what it has to look like
    ThingKind.SNAPSHOT: ("DATASET@ID or ID", r"([A-Za-z0-9._-]+@)?[0-9a-f]{6,64}"),
    ThingKind.CHECKPOINT: (
        "RUN@STEP, RUN/aNN@STEP or SHA256",
        rf"{RUN_ID}(/a[0-9]+)?@[0-9]{{1,18}}|[0-9a-f]{{6,64}}",
    ),
    ThingKind.NODE: ("NAME", r"[A-Za-z0-9][A-Za-z0-9._:-]{0,252}"),
    ThingKind.CODE: ("COMMIT, VERSION or ENVIRONMENT", r"[0-9A-Za-z][0-9A-Za-z.+_-]{0,99}"),
    ThingKind.ATTEMPT: ("RUN/aNN", rf"{RUN_ID}/a[0-9]+"),
    ThingKind.RUN: ("RUN", RUN_ID),
    ThingKind.EVAL: ("RUN/SUITE@STEP", rf"{RUN_ID}/[^/]+@[0-9]+"),
    ThingKind.PROMOTION: ("RUN/ALIAS", rf"{RUN_ID}/[^/]+"),
}


def parse_thing(text: str) -> Thing:
    """Return the thing that `kind:name` names; whether there is one is not looked up.

    Raises InvalidInput naming the kinds, or the form of that kind.
    """
    kind_text, separator, name = text.partition(":")
    if not separator or kind_text not in set(ThingKind):
        kinds = ", ".join(f"{kind}:{form}" for kind, (form, _) in FORMS.items())
        raise InvalidInput(f"{text!r} names nothing that can be looked up; write one of {kinds}.")
    kind = ThingKind(kind_text)
    form, pattern = FORMS[kind]
    if not re.fullmatch(pattern, name):
        raise InvalidInput(f"{name!r} names no {kind}; write {kind}:{form}.{_hint(kind, name)}")
    if kind is ThingKind.ATTEMPT:
        name = attempt_key(*parse_attempt_key(name))
    return Thing(kind=kind, name=name)


def is_named_with_kind(text: str) -> bool:
    """Whether the text begins with the kind of what it names."""
    kind, separator, _ = text.partition(":")
    return bool(separator) and kind in set(ThingKind)


def possible_things(text: str) -> list[Thing]:
    """Return what a name without its kind may mean by its form, the likeliest kind first.

    Raises InvalidInput where it has the form of nothing.
    """
    order = (
        *(ThingKind.RUN, ThingKind.ATTEMPT, ThingKind.CHECKPOINT, ThingKind.SNAPSHOT),
        *(ThingKind.EVAL, ThingKind.PROMOTION, ThingKind.CODE, ThingKind.NODE),
    )
    found = [parse_thing(f"{kind}:{text}") for kind in order if re.fullmatch(FORMS[kind][1], text)]
    kinds = {each.kind for each in found}
    if ThingKind.ATTEMPT in kinds:  # RUN/aNN is not an alias
        found = [each for each in found if each.kind is not ThingKind.PROMOTION]
    if ThingKind.CHECKPOINT in kinds and "/" in text:  # nor RUN/aNN@STEP a suite
        found = [each for each in found if each.kind not in (ThingKind.EVAL, ThingKind.PROMOTION)]
    return found or [parse_thing(text)]


def _hint(kind: ThingKind, name: str) -> str:
    """Return a hint for a shortened name, with a space before it; empty where none helps."""
    shortest = f"The first {PREFIX_CHARACTERS_MIN} or more digits are needed"
    if kind is ThingKind.SNAPSHOT:
        dataset, at, digits = name.partition("@")
        if not re.fullmatch(r"[A-Za-z0-9._-]+", dataset):
            return ""
        if not at and re.fullmatch(r"[0-9a-f]+", name):
            dataset, digits = "", name
        listed = f"`{f'tracks snapshots list {dataset}'.rstrip()}` names them."
        is_short = 0 < len(digits) < PREFIX_CHARACTERS_MIN and re.fullmatch(r"[0-9a-f]+", digits)
        return f" {shortest} of its id; {listed}" if is_short else f" {listed}"
    if kind is ThingKind.CHECKPOINT and RUN_ID_PATTERN.fullmatch(name):
        return (
            f" {shortest} of a manifest's sha256; `tracks checkpoints list {name}` shows the steps of "
            "a run of that name."
        )
    return ""


def attempt_thing(run_id: str, attempt_id: int) -> Thing:
    """Return the thing that an attempt is."""
    return Thing(kind=ThingKind.ATTEMPT, name=attempt_key(run_id, attempt_id))


def checkpoint_thing(ref: CheckpointRef) -> Thing:
    """Return the thing that a checkpoint is, named by its manifest: no two share that."""
    return Thing(kind=ThingKind.CHECKPOINT, name=ref.manifest_sha256)


def checkpoint_name(run_id: str, attempt_id: int, step: int) -> str:
    """Return a checkpoint as people name it, `checkpoint:RUN/aNN@STEP`: an older attempt may have
    saved the same step."""
    return f"{ThingKind.CHECKPOINT}:{attempt_key(run_id, attempt_id)}@{step}"


def is_code(name: str, code: CodeVersion, *sha256s: str | None) -> bool:
    """Whether `name` names the code of an attempt: its commit, or one of `sha256s`, of its environment
    and its stored code, or the first digits of one, or the version of this package."""
    commit = code.git_commit or ""
    return (
        name == code.package_version
        or name == commit
        or (len(name) >= COMMIT_CHARACTERS_MIN and commit.startswith(name))
        or (
            len(name) >= PREFIX_CHARACTERS_MIN
            and any((sha256 or "").startswith(name) for sha256 in sha256s)
        )
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Consumed:
    """The samples that an attempt used, by place in the order of its seed.

    From `cursor_from` up to, not including, `cursor_to`, without the `skipped` ranges between. None:
    the records do not say. is_at_least: it may have used more than its newest commit says: it was open
    then, or its journal was lost.
    """

    cursor_from: int | None
    cursor_to: int | None
    skipped: tuple[tuple[int, int], ...] = ()
    is_at_least: bool = False

    @property
    def words(self) -> str:
        """The samples in words."""
        if self.cursor_from is None or self.cursor_to is None:
            return "samples that its records do not number"
        without = ", ".join(f"{first} to {last}" for first, last in self.skipped)
        left_out = f", without {without} (skipped)" if without else ""
        more = ", and perhaps more" if self.is_at_least else ""
        return f"samples {self.cursor_from} to {self.cursor_to}{left_out}{more}"


def skipped_samples(
    config: Mapping[str, Json], roles: Roles, cursor_from: int | None, cursor_to: int | None
) -> tuple[tuple[int, int], ...]:
    """Return the ranges of samples that the config's skip windows took out between the cursors.

    Blocks 11 to 15 of 24 samples: (240, 360).
    """
    batch = value_of(config, roles, GLOBAL_BATCH)
    if type(batch) is not int or cursor_from is None or cursor_to is None:
        return ()
    try:
        blocks = skipped_blocks(config.get(SKIP_WINDOWS))
    except InvalidInput:
        return ()
    ranges = (((first - 1) * batch, last * batch) for first, last in blocks)
    return tuple(each for each in ranges if cursor_from <= each[0] and each[1] <= cursor_to)


def ran_a_step(state: RunState, attempt: AttemptState) -> bool:
    """Whether the records show that the attempt used any sample: by its end, or by a commit.

    A commit counts after the step that it started from.
    """
    ended = attempt.ended
    if ended is not None:
        if ended.last_step is not None and ended.last_step > attempt.resumed_step:
            return True
        if ended.cursor_to is not None and ended.cursor_to > (cursor_from(attempt) or 0):
            return True
    return any(
        c.ref.attempt_id == attempt.attempt_id and c.ref.step > attempt.resumed_step
        for c in state.checkpoints
    )


def carried(
    state: RunState,
    *,
    by_attempt: Callable[[AttemptState], Mapping[str, Mark]],
    by_checkpoint: Callable[[CheckpointState], Mapping[str, Mark]],
    from_elsewhere: Callable[[CheckpointRef], Mapping[str, Mark]],
) -> tuple[dict[int, Mapping[str, Mark]], dict[str, Mapping[str, Mark]]]:
    """Return the marks of every attempt, by id, and of every checkpoint, by its manifest's sha256.

    by_attempt, by_checkpoint: the marks that one sets by itself. from_elsewhere: those of another run's
    checkpoint, which an attempt resumed from. Of two marks of one source the nearer one stays.
    """
    attempts: dict[int, Mapping[str, Mark]] = {}
    checkpoints: dict[str, Mapping[str, Mark]] = {}
    commits: dict[int, list[CheckpointState]] = {}
    for checkpoint in state.checkpoints:
        commits.setdefault(checkpoint.ref.attempt_id, []).append(checkpoint)
    for attempt in state.attempts:
        number, source = attempt.attempt_id, attempt.resumed_from
        if source is None:
            restored: Mapping[str, Mark] = {}
        elif source.run_id == state.run_id:
            restored = checkpoints.get(source.manifest_sha256, {})
        else:
            restored = from_elsewhere(source)
        attempts[number] = _merged(restored, by_attempt(attempt))
        for checkpoint in commits.get(number, ()):
            worked = checkpoint.ref.step > attempt.resumed_step
            passed_on = attempts[number] if worked else restored
            set_here = by_checkpoint(checkpoint)
            checkpoints[checkpoint.ref.manifest_sha256] = _merged(passed_on, set_here)
    return attempts, checkpoints


def _merged(older: Mapping[str, Mark], newer: Mapping[str, Mark]) -> Mapping[str, Mark]:
    """Return both; the same object where one is empty: most runs carry no marks, or one set of them."""
    if not newer:
        return older
    return {**older, **newer} if older else newer
