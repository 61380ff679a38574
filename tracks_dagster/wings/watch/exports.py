"""What of a run a tracker gets: the kept steps up to the newest commit, and what the run is. Pure.

What was sent is taken back only by a rollback: an attempt that resumes before it. Steps that a crash
lost were never sent, so two attempts never overlap (mlflow#10510, wandb#7951).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from tracks_dagster.track.json_text import parse_json
from tracks_dagster.track.media import ITEM_BYTES_MAX, TABLE, Logged
from tracks_dagster.track.records import Json, format_time, sha256_hex
from tracks_dagster.track.states.accounting import kept_and_lost
from tracks_dagster.track.states.lifecycle import RunLifecycle, run_status
from tracks_dagster.track.states.run_state import AttemptState, RunState
from tracks_dagster.track.text.safe_text import one_line

ATTEMPTS_TAGGED_MAX = 50  # the newest; a run that is preempted daily has hundreds
KEY_DIGITS = 8
KEY_CHARACTERS_MAX = 250  # of a metric, by MLflow's REST API
_NOT_IN_A_KEY = re.compile(r"[^\w./: -]", re.ASCII)
_UNSAFE = re.compile(r"^[./]|\.\.|//|[/.]$")  # what a tracker would take for a path
BELOW_0 = "a step below 0 cannot be shown"
ROLLBACKS_MAX = 20  # that a tracker lists, the newest; the run's record has all

T = TypeVar("T")
# Of a thing that was logged: its attempt, and its index in what that stored; after its step: in order.
Place = tuple[int, int]
StepPlace = tuple[int, int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Sent:
    """How far a tracker has come in a run: the newest step that it has, and which attempt ran it.

    rollbacks: what was taken back so far, in words, oldest first. logged: the place after all that
    was logged when it was last sent; what was stored later is at that place or after it. lacks_from:
    the first of what is before that place that was not sent; None: all up to `step` was.
    """

    step: int = 0
    attempt_id: int | None = None
    rollbacks: tuple[str, ...] = ()
    logged: Place = (0, 0)
    lacks_from: StepPlace | None = None

    @property
    def first_lacking(self) -> StepPlace:
        """Where what it lacks of what is before `logged` begins."""
        return self.lacks_from or (self.step + 1, 0, 0)

    def with_rows(self, step: int, attempt_id: int) -> Sent:
        """Return it with the rows up to `step`, and nothing more of what was logged."""
        return replace(self, step=step, attempt_id=attempt_id, lacks_from=self.first_lacking)

    def to_json(self) -> dict[str, Json]:
        """Return it as a tracker stores it."""
        return {
            "step": self.step,
            "attempt_id": self.attempt_id,
            "rollbacks": list(self.rollbacks),
            "logged": list(self.logged),
            "lacks_from": None if self.lacks_from is None else list(self.lacks_from),
        }

    @classmethod
    def from_json(cls, stored: Mapping[str, Any]) -> Sent:
        """Return what `to_json` made; raises ValueError for anything else."""
        step, attempt_id = stored.get("step"), stored.get("attempt_id")
        rollbacks = stored.get("rollbacks")
        # An export of before sent nothing that was logged; a later one, all of it or nothing.
        logged, lacks_from = stored.get("logged", [0, 0]), stored.get("lacks_from")
        if (
            not isinstance(step, int)
            or not isinstance(attempt_id, int | None)
            or not isinstance(rollbacks, list)
            or not _are_ints(logged, 2)
            or not (lacks_from is None or _are_ints(lacks_from, 3))
        ):
            raise ValueError(f"it is not what an export leaves: {dict(stored)}")
        return cls(
            step=step,
            attempt_id=attempt_id,
            rollbacks=tuple(map(str, rollbacks)),
            logged=(logged[0], logged[1]),
            lacks_from=None
            if lacks_from is None
            else (lacks_from[0], lacks_from[1], lacks_from[2]),
        )


def _are_ints(found: Any, count: int) -> bool:
    return isinstance(found, list) and [type(each) for each in found] == [int] * count


NOTHING_SENT = Sent()


@dataclass(frozen=True, slots=True, kw_only=True)
class Rollback:
    """Steps that a tracker has and the run no longer rests on: to_step + 1 to from_step."""

    from_step: int
    to_step: int
    words: str


def find_rollback(state: RunState, sent: Sent) -> Rollback | None:
    """Return what of `sent` the run has taken back since; None where it still rests on all of it."""
    if sent.attempt_id is None or state.attempt(sent.attempt_id) is None:
        return None
    end = kept_and_lost(state)[sent.attempt_id - 1].end
    if end >= sent.step:
        return None
    newest = state.attempts[-1]
    words = (
        f"steps {end + 1} to {sent.step} of attempt {sent.attempt_id} and before were taken back; "
        f"the run goes on from step {end}: attempt {newest.attempt_id}, opened "
        f"{format_time(newest.opened_at)}"
    )
    return Rollback(from_step=sent.step, to_step=end, words=words)


def after_rollback(sent: Sent, rollback: Rollback | None) -> Sent:
    """Return how far a tracker has come once the rollback is tagged."""
    if rollback is None:
        return sent
    rollbacks = (*sent.rollbacks, rollback.words)[-ROLLBACKS_MAX:]
    lacks_from = sent.lacks_from
    if lacks_from is not None and lacks_from[0] > rollback.to_step:
        lacks_from = None
    return replace(sent, step=rollback.to_step, rollbacks=rollbacks, lacks_from=lacks_from)


def find_logged(
    logged: Iterable[tuple[Place, Logged]], sent: Sent
) -> tuple[list[tuple[Logged, Sent]], Sent]:
    """Return what a tracker lacks of what was logged, each with `sent` once it has that and those
    before it; and `sent` once it has all of them.

    Something may be stored some seconds after the numbers of its step were sent, so what is due has a
    step that was not sent, or a place that was not there yet. Nothing before the first row.
    """
    if sent.attempt_id is None:
        return [], sent
    first, end = sent.first_lacking, sent.logged
    lacking, new = list[tuple[StepPlace, Logged]](), list[tuple[Place, Logged]]()
    for place, item in logged:
        end = max(end, _after(place))
        if item.step <= sent.step and place >= sent.logged:
            new.append((place, item))
        elif item.step <= sent.step and (item.step, *place) >= first:
            lacking.append(((item.step, *place), item))
    due = [
        (item, replace(sent, lacks_from=(step, *_after(place))))
        for (step, *place), item in sorted(lacking, key=lambda each: each[0])
    ]
    due += [  # in the order of their places, for those with a later step are lacking then
        (item, replace(sent, logged=_after(place), lacks_from=None))
        for place, item in sorted(new, key=lambda each: each[0])
    ]
    return due, replace(sent, logged=end, lacks_from=None)


def _after(place: Sequence[int]) -> Place:
    return place[0], place[1] + 1


def safe_key(name: str, characters_max: int = KEY_CHARACTERS_MAX) -> str:
    """Return a name that a tracker takes, as part of a path too; one that had to be changed ends with a
    digest of what it was."""
    changed = _NOT_IN_A_KEY.sub("_", name)
    if changed == name and len(name) <= characters_max and not _UNSAFE.search(name):
        return name
    digest = sha256_hex(name.encode())[:KEY_DIGITS]
    changed = changed.replace("/", "_").replace("..", "_").lstrip(".")
    return f"{changed[: characters_max - KEY_DIGITS - 1]}_{digest}"


def left_out(item: Logged, why: str) -> str:
    """Return that one thing was not sent, in words; its name may be anything."""
    return f"{one_line(item.name)} of step {item.step}: {why}"


def as_table(item: Logged, data: bytes) -> tuple[list[str], list[list[Json]]]:
    """Return the columns and rows of a table; of a confusion matrix a row for each class.

    Raises ValueError where the bytes are neither.
    """
    try:
        found = parse_json(data, bytes_max=ITEM_BYTES_MAX)
        if item.kind == TABLE:
            columns, rows = found["columns"], [list(row) for row in found["rows"]]
        else:
            labels = found["labels"]
            columns = ["is ↓ taken for →", *labels]
            rows = [[label, *line] for label, line in zip(labels, found["counts"], strict=True)]
        columns = [str(each) for each in columns]
        if any(len(row) != len(columns) for row in rows):
            raise ValueError("a row has another length")
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError("its bytes are not those of a table") from error
    return columns, rows


def as_histogram(data: bytes) -> tuple[list[float], list[float]]:
    """Return the counts (B,) and edges (B + 1,) of a histogram.

    Raises ValueError where the bytes are none, or have nothing finite.
    """
    try:
        found = parse_json(data)
        counts, edges = [float(n) for n in found["counts"]], [float(x) for x in found["edges"]]
    except (ValueError, KeyError, TypeError, OverflowError) as error:
        raise ValueError("its bytes are not those of a histogram") from error
    if not counts or len(edges) != len(counts) + 1:
        raise ValueError("no number of it is finite")
    return counts, edges


def without_last(rows: Iterable[T]) -> Iterator[T]:
    """Yield all but the last: while its attempt goes on, an evaluation of that step may still come."""
    behind: list[T] = []
    for row in rows:
        yield from behind
        behind = [row]


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportedRun:
    """What a tracker shows of a run beside its curves.

    key: tells it from a run of the same name that another home declared. tags: what changes as the run
    goes on; config: of its declaration, flat. status: one of ours, a `RunLifecycle`; ended_at: seconds
    since 1970, None while it goes on.
    """

    run_id: str
    key: str
    project: str
    began_at: float
    status: str
    config: Mapping[str, Json] = field(default_factory=dict)
    tags: Mapping[str, str] = field(default_factory=dict)
    ended_at: float | None = None

    @property
    def is_open(self) -> bool:
        """Whether more steps may come by themselves."""
        return self.status == RunLifecycle.RUNNING


def describe_run(state: RunState) -> ExportedRun:
    """Return what a tracker shows of a run as it is now."""
    status, declared = run_status(state).state, state.declared
    last = state.last_attempt
    ended_at = state.finished_at or (last.ended_at if last is not None else None)
    is_over = status != RunLifecycle.RUNNING and ended_at is not None
    return ExportedRun(
        run_id=state.run_id,
        key=_key(state),
        project=declared.model_family,
        began_at=state.declared_at.timestamp(),
        status=status,
        config=declared.config,
        tags=dict(_tags(state)),
        ended_at=ended_at.timestamp() if is_over and ended_at is not None else None,
    )


def _key(state: RunState) -> str:
    declared = f"{state.run_id}\n{state.declared.owner}\n{format_time(state.declared_at)}"
    return f"{state.run_id}-{sha256_hex(declared.encode())[:KEY_DIGITS]}"


def _tags(state: RunState) -> Iterator[tuple[str, str]]:
    declared = state.declared
    yield "tracks.run_id", state.run_id
    yield "tracks.project", declared.model_family
    yield "tracks.owner", declared.owner
    yield "tracks.team", declared.team
    yield "tracks.stage", declared.stage
    yield "tracks.intent", one_line(declared.intent)
    if declared.code.git_commit:
        yield "tracks.git_commit", declared.code.git_commit
    if declared.snapshot is not None:
        yield "tracks.snapshot", f"{declared.snapshot.dataset}@{declared.snapshot.snapshot_id}"
    if declared.branched_from is not None:
        source = declared.branched_from
        yield "tracks.branched_from", f"{source.run_id}@{source.step}"
    yield "tracks.state", run_status(state).state
    yield "tracks.attempts", str(len(state.attempts))
    for attempt in state.attempts[-ATTEMPTS_TAGGED_MAX:]:
        yield f"tracks.a{attempt.attempt_id:02d}", _describe(attempt)


def _describe(attempt: AttemptState) -> str:
    """Return an attempt in a line: "from step 40: gpu_oom; micro_batch 4 → 2"."""
    how = "open" if attempt.reason is None else attempt.reason.value
    changes = (f"{each.key} {each.before} → {each.after}" for each in attempt.opened.remediation)
    return "; ".join((f"from step {attempt.resumed_step}: {how}", *changes))
