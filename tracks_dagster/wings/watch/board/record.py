"""What the record has of a run beside its curves and attempts, as tables. Pure.

Evals, aliases, config, checkpoints, code and data, files, notes: each a `Section` of plain cells, so
that one template draws them all, and a test reads them as a person does.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from urllib.parse import quote, urlencode

from tracks_dagster.checkpoints.retention import judge_one
from tracks_dagster.track.artifacts import ARTIFACT, artifacts_of
from tracks_dagster.track.bodies import SnapshotRef
from tracks_dagster.track.names import attempt_key
from tracks_dagster.track.records import Json
from tracks_dagster.track.states.checkpoints import CheckpointRef, checkpoint_at
from tracks_dagster.track.states.evals import what_evals_wait_for
from tracks_dagster.track.states.protection import RESUMES
from tracks_dagster.track.states.run_state import (
    CheckpointState,
    EvalState,
    RunState,
    code_of,
    stored_code_sha256,
    trainer_of,
)
from tracks_dagster.track.text.units import counted
from tracks_dagster.wings.watch.board import formats

EVALS_MAX = 30  # the newest; the report has them all, as of all below
CHECKPOINTS_MAX = 20
NOTES_MAX = 20
CONFIG_KEYS_MAX = 500
FILES_MAX = 100  # of evals
VALUE_CHARACTERS_MAX = 200  # of a value of a config
DIGITS = 12  # of a sha256, and of a commit


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One cell. address: of the page or the file that it leads to; soft: words beside it, less
    important; command: what does it, to copy."""

    text: str = ""
    address: str = ""
    soft: str = ""
    command: str = ""
    is_number: bool = False
    is_strong: bool = False


Row = tuple[Cell, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """One table. key: its anchor; folded: rows that are looked at last, of which `fold` says what they
    are; words: sentences below it."""

    key: str
    title: str
    heads: tuple[str, ...]
    rows: tuple[Row, ...]
    folded: tuple[Row, ...] = ()
    fold: str = ""
    words: tuple[str, ...] = ()

    @property
    def is_empty(self) -> bool:
        """Whether nothing is to be seen of it."""
        return not (self.rows or self.folded or self.words)


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """The run whose config another's is read against. why: which one it is, after its name."""

    run_id: str
    config: Mapping[str, Json]
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordContext:
    """What a record is read with beside its own track.

    origin: None where there is no other run to compare with. holders: alias → what it names now, as far
    as the ledger knows. quarantined: manifest sha256 → the sources in quarantine that a checkpoint
    descends from; sources: a sentence for each. resumes_from: what the next attempt would begin from.
    trial: of which study, and its number, where the run is one. eval_tries: how often an eval is tried,
    None without a limit.
    """

    origin: Origin | None = None
    holders: Mapping[str, tuple[str, str]] | None = None
    quarantined: Mapping[str, Sequence[str]] | None = None
    sources: tuple[str, ...] = ()
    resumes_from: CheckpointRef | None = None
    trial: tuple[str, int] | None = None
    eval_tries: int | None = None


NOTHING_BESIDE = RecordContext()


def results(state: RunState, context: RecordContext, now: datetime) -> tuple[Section, ...]:
    """Return what came of the run, which is looked at first; what is empty is left out."""
    return _filled((evals(state, context.eval_tries), aliases(state, context.holders or {}, now)))


def record(state: RunState, context: RecordContext, now: datetime) -> tuple[Section, ...]:
    """Return the rest of the record, in the order in which it is asked for."""
    found = (
        config(state, context.origin),
        checkpoints(state, context, now),
        code_and_data(state, context.origin),
        files(state),
        notes(state, now),
    )
    return _filled(found)


def _filled(sections: Iterable[Section]) -> tuple[Section, ...]:
    return tuple(each for each in sections if not each.is_empty)


# --- what came of it --------------------------------------------------------------------------------


def evals(state: RunState, tries: int | None) -> Section:
    """Return what evals measured, the newest first. tries: how often one is tried."""
    newest = state.evals[: -EVALS_MAX - 1 : -1]
    waits = () if state.finished is not None else what_evals_wait_for(state, attempts_max=tries)
    words = [f"Waits: {each}." for each in waits]
    words += [
        f"{each.body.suite} was let go by {each.body.by}: {each.body.why}" for each in state.waivers
    ]
    return Section(
        key="evals",
        title="Evals",
        heads=("eval", "after step", "measured", "on", "took", "files"),
        rows=tuple(_eval(state, each) for each in newest),
        words=(*words, *_left_out(len(state.evals) - len(newest), "older eval", state)),
    )


def _eval(state: RunState, evaluation: EvalState) -> Row:
    opened, ended = evaluation.opened, evaluation.ended
    number = f"try {opened.number}" if opened.number > 1 else ""
    if ended is None:
        result = Cell(text="open", soft=f"since {formats.clock(evaluation.opened_at)}")
    elif ended.metrics:
        result = Cell(text=_numbers(ended.metrics), soft=ended.message, is_strong=True)
    else:
        result = Cell(text=ended.reason, soft=ended.message)
    count = 0 if ended is None else len(ended.artifacts)
    return (
        Cell(text=opened.suite, soft=", ".join(filter(None, (opened.suite_version, number)))),
        Cell(text=formats.grouped(opened.checkpoint.step), is_number=True),
        result,
        Cell(text=_snapshot(opened.snapshot), soft=f"seed {opened.seed}"),
        Cell(text="" if ended is None else f"{formats.number(ended.device_seconds)} device s"),
        Cell(text=counted(count, "file") if count else "", address="#files" if count else ""),
    )


def _numbers(metrics: Mapping[str, float]) -> str:
    return ", ".join(f"{name} {formats.number(value)}" for name, value in sorted(metrics.items()))


def aliases(state: RunState, holders: Mapping[str, tuple[str, str]], now: datetime) -> Section:
    """Return which checkpoints were promoted or refused, the newest decision first, and what each alias
    names now."""
    rows = []
    for each in reversed(state.promotions):
        body = each.body
        verdict = (
            "promoted" if body.promoted else "withheld" if body.is_withheld else "not promoted"
        )
        has = holders.get(body.alias)
        now_word = ""
        if body.promoted and has is not None:
            is_this = has == (state.run_id, body.checkpoint.manifest_sha256)
            now_word = "it has the alias now" if is_this else f"{has[0]} has the alias now"
        rows.append(
            (
                Cell(text=body.alias, soft=now_word, is_strong=True),
                Cell(text=formats.grouped(body.checkpoint.step), is_number=True),
                Cell(text=verdict, soft=body.why),
                Cell(text=body.decided_by, soft=formats.ago(each.at, now)),
            )
        )
    heads = ("alias", "step", "decision", "by")
    return Section(key="aliases", title="Aliases", heads=heads, rows=tuple(rows[:EVALS_MAX]))


# --- with what it was made --------------------------------------------------------------------------


def config(state: RunState, origin: Origin | None) -> Section:
    """Return the config of the newest attempt: what differs first, from its origin or from what was
    declared."""
    attempt = state.last_attempt
    declared = state.declared.config
    now = declared if attempt is None else attempt.opened.config
    before = {} if origin is None else origin.config
    names = sorted({*now, *(before if origin is not None else ()), *declared})[:CONFIG_KEYS_MAX]
    differing: list[Row] = []
    same: list[Row] = []
    for name in names:
        differs = origin is not None and before.get(name, _NONE) != now.get(name, _NONE)
        is_changed = declared.get(name, _NONE) != now.get(name, _NONE)
        row = (
            Cell(text=name, is_strong=differs or is_changed),
            Cell(
                text=value_text(now.get(name, _NONE)),
                soft=f"declared {value_text(declared.get(name, _NONE))}" if is_changed else "",
            ),
            Cell(text=value_text(before.get(name, _NONE)) if differs else ""),
        )
        (differing if differs or is_changed else same).append(row)
    against = "" if origin is None else origin.run_id
    words = [] if origin is None else [f"Compared with {origin.run_id}, {origin.why}."]
    left = len({*now, *declared}) - CONFIG_KEYS_MAX
    words += [f"{counted(left, 'key')} more: `tracks explain {state.run_id} --json`."] * (left > 0)
    if not differing:
        words += ["No key differs from it."] if origin is not None and now else []
    return Section(
        key="config",
        title="Config",
        heads=("key", "value", against),
        rows=tuple(differing),
        folded=tuple(row[:2] for row in same),
        fold=f"{counted(len(same), 'key')}{' the same' if differing or origin else ''}",
        words=tuple(words) if now else (),
    )


_NONE = object()


def value_text(value: object) -> str:
    """Return a value of a config in few characters; a dash where there is none."""
    if value is _NONE:
        return formats.UNKNOWN
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    cut = VALUE_CHARACTERS_MAX
    return text if len(text) <= cut else f"{text[: cut - 1]}…"


def code_and_data(state: RunState, origin: Origin | None) -> Section:
    """Return which code and data it is of, what it came from, and where each is to be seen."""
    return Section(
        key="code",
        title="Code and data",
        heads=("", "", ""),
        rows=tuple(_code_and_data(state, origin)),
    )


def _code_and_data(state: RunState, origin: Origin | None) -> Iterator[Row]:
    declared, attempt = state.declared, state.last_attempt
    snapshot = declared.snapshot if attempt is None else attempt.opened.snapshot
    if snapshot is not None:
        name = f"snapshot:{_snapshot(snapshot)}"
        yield (
            Cell(text="data"),
            Cell(text=_snapshot(snapshot), address=lineage_address(name)),
            Cell(command=f"tracks blast {name}"),
        )
    code = declared.code if attempt is None else code_of(state, attempt)
    if code.git_commit is not None:
        branch = f"branch {code.branch}" if code.branch else "no branch"
        thing = f"code:{code.git_commit[:DIGITS]}"
        yield (
            Cell(text="commit"),
            Cell(text=code.git_commit[:DIGITS], soft=branch, address=lineage_address(thing)),
            Cell(command=f"git show {code.git_commit[:DIGITS]}"),
        )
    if code.diff_sha256 is not None:
        address = f"/runs/{state.run_id}/code.diff"
        yield Cell(text="local changes"), Cell(text="what no commit holds", address=address), Cell()
    elif code.dirty:
        yield Cell(text="local changes"), Cell(text="some, and they were not stored"), Cell()
    stored = None if attempt is None else stored_code_sha256(trainer_of(state, attempt))
    if stored is not None:
        yield Cell(text="stored code"), Cell(text=stored[:DIGITS]), Cell()
    source = declared.branched_from
    if source is not None:
        at = checkpoint_at(source)
        yield (
            Cell(text="came from"),
            Cell(text=at, address=f"/runs/{source.run_id}"),
            Cell(command=f"tracks lineage checkpoint:{at}"),
        )
    if origin is not None:
        both = urlencode([("run", origin.run_id), ("run", state.run_id)])
        yield (
            Cell(text="difference"),
            Cell(text=f"{origin.run_id} beside this run", address=f"/compare?{both}"),
            Cell(command=f"tracks diff {origin.run_id} {state.run_id}"),
        )
    yield (
        Cell(text="lineage"),
        Cell(
            text="what it rests on, what came of it", address=lineage_address(f"run:{state.run_id}")
        ),
        Cell(command=f"tracks lineage run:{state.run_id}"),
    )


def lineage_address(thing: str) -> str:
    """Return the page of a thing's lineage."""
    return f"/lineage?{urlencode({'thing': thing})}"


def _snapshot(ref: SnapshotRef | None) -> str:
    return "no snapshot" if ref is None else f"{ref.dataset}@{ref.snapshot_id[:DIGITS]}"


# --- what it left -----------------------------------------------------------------------------------


def checkpoints(state: RunState, context: RecordContext, now: datetime) -> Section:
    """Return the checkpoints that are there, the newest first, and why each is.

    Of many the newest, and those that have an alias.
    """
    there = [each for each in reversed(state.checkpoints) if not each.deleted]
    promoted = {p.body.checkpoint.manifest_sha256 for p in state.promotions if p.body.promoted}
    newest = {each.seq for each in there[:CHECKPOINTS_MAX]}
    shown = [each for each in there if each.seq in newest or each.ref.manifest_sha256 in promoted][
        : 2 * CHECKPOINTS_MAX
    ]
    steps = [each.ref.step for each in state.checkpoints]
    twice = {step for step in {each.ref.step for each in shown} if steps.count(step) > 1}
    more = len(there) - len(shown)
    gone = len(state.checkpoints) - len(there)
    words = list(context.sources)
    if more or gone:
        parts = [f"{more} older" if more else "", f"{gone} deleted" if gone else ""]
        words.append(
            f"Not shown: {', '.join(filter(None, parts))}; `tracks checkpoints list {state.run_id}` "
            "has all."
        )
    return Section(
        key="checkpoints",
        title="Checkpoints",
        heads=("step", "state", "size", "why it is there", "take it away, or verify it"),
        rows=tuple(
            _checkpoint(state, each, context, now, each.ref.step in twice) for each in shown
        ),
        words=tuple(words),
    )


def _checkpoint(
    state: RunState, each: CheckpointState, context: RecordContext, now: datetime, is_twice: bool
) -> Row:
    ref = each.ref
    sources = (context.quarantined or {}).get(ref.manifest_sha256, ())
    judged = judge_one(state, ref.manifest_sha256, now)
    why = [f"no start from it: {source} is in quarantine" for source in sources]
    why += [RESUMES] if ref == context.resumes_from else []
    why += [each for each in (judged.why if judged is not None else ()) if each != RESUMES]
    at, attempt = checkpoint_at(ref), f" --attempt {ref.attempt_id}" if is_twice else ""
    take = f"tracks checkpoints export {at}{attempt} --bundle {ref.run_id}-{ref.step}"
    verify = f"tracks checkpoints verify {ref.run_id} --step {ref.step}{attempt}"
    is_verified = each.verified_at is not None
    return (
        Cell(
            text=formats.grouped(ref.step),
            soft=f"a{ref.attempt_id:02d}, {formats.ago(each.at, now)}",
            address=lineage_address(
                f"checkpoint:{attempt_key(ref.run_id, ref.attempt_id)}@{ref.step}"
            ),
            is_strong=True,
        ),
        Cell(text=each.status, soft=verified_words(each)),
        Cell(text=formats.size(each.body.total_bytes), is_number=True),
        Cell(text="; ".join(why)),
        Cell(command=take if is_verified or each.quarantined else verify),
    )


def verified_words(checkpoint: CheckpointState) -> str:
    """Return whether its bytes are known to be right, as of then: they may have rotted since."""
    if checkpoint.quarantined:
        return "in quarantine"
    at = checkpoint.verified_at
    return "not verified yet" if at is None else f"verified {formats.clock(at)}"


def files(state: RunState) -> Section:
    """Return the files that evals and the script left, to be fetched."""
    rows = [*_artifact_rows(state), *_eval_files(state)]
    left = len(rows) - FILES_MAX
    return Section(
        key="files",
        title="Files",
        heads=("file", "size", "of"),
        rows=tuple(rows[:FILES_MAX]),
        words=(f"{counted(left, 'file')} more not shown.",) if left > 0 else (),
    )


def _artifact_rows(state: RunState) -> Iterator[Row]:
    for each in artifacts_of(note.body for note in state.notes):
        yield (
            Cell(text=each.name, address=f"/runs/{state.run_id}/artifacts/{quote(each.name)}"),
            Cell(text=formats.size(each.total_bytes), is_number=True),
            Cell(
                text=f"the script, after step {formats.grouped(each.step)}",
                soft=each.sha256[:DIGITS],
            ),
        )


def _eval_files(state: RunState) -> Iterator[Row]:
    for evaluation in reversed(state.evals):
        opened, ended = evaluation.opened, evaluation.ended
        for each in () if ended is None else ended.artifacts:
            path = f"{quote(opened.eval_id, safe='')}/{opened.number}/{quote(each.name)}"
            yield (
                Cell(text=each.name, address=f"/runs/{state.run_id}/evals/{path}"),
                Cell(text=formats.size(each.size_bytes), is_number=True),
                Cell(text=opened.eval_id, soft=each.sha256[:DIGITS]),
            )


def notes(state: RunState, now: datetime) -> Section:
    """Return what people wrote and asked for, the newest first."""
    remarks = [
        (each.seq, each.at, each.attempt_id, each.body.by, each.body.text)
        for each in state.notes
        if ARTIFACT not in each.body.data
    ]
    remarks += [
        (each.seq, each.at, each.attempt_id, each.body.by, f"{each.body.mode}: {each.body.why}")
        for each in state.stops
    ]
    newest = sorted(remarks, reverse=True)
    rows = [
        (
            Cell(text=text),
            Cell(text=by, soft="" if attempt_id is None else f"of a{attempt_id:02d}"),
            Cell(text=formats.ago(at, now), soft=formats.clock(at)),
        )
        for _, at, attempt_id, by, text in newest[:NOTES_MAX]
    ]
    words = (f'Another: `tracks note {state.run_id} "…"`.',) if rows else ()
    return Section(
        key="notes",
        title="Notes",
        heads=("note", "by", "when"),
        rows=tuple(rows),
        words=(*words, *_left_out(len(newest) - len(rows), "older note", state)),
    )


def _left_out(count: int, noun: str, state: RunState) -> tuple[str, ...]:
    if count <= 0:
        return ()
    return (f"{counted(count, noun)} not shown: the report of {state.run_id} has every one.",)
