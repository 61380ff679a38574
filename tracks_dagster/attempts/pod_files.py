"""The messages between a gang's pods and their watcher, objects in the store. Pure.

Below `runs/<run_id>/attempts/<attempt_id>/gang/`; every object is small, written whole and replaced
whole. Pods have no way to each other's control plane, and the watcher may not enter a pod: so a pod
leaves where its ranks stand and how they ended, and looks for what it is asked.

    <pod uid>/beat.json              the ranks' beats: put at its start, when it changed, at most every
                                     BEAT_EVERY_S, and every ALIVE_EVERY_S: who is silent may only
                                     not reach the store
    <pod uid>/end.json               how they ended: put at each end; each rank has one at the last
    failed.json                      that a rank failed; the other pods look every ASK_EVERY_S
    ask.json                         the newest wish; pods look every ASK_EVERY_S
    <pod uid>/stacks-<ask uid>.json  a pod's answer to STACKS
    <pod uid>/save-<ask uid>.json    the answer to SAVE, of the pod that holds rank 0 only
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from tracks_dagster.reasons.evidence import Condition, RankEnd
from tracks_dagster.reasons.hangs import Beat, Phase, StackDump
from tracks_dagster.track.body_json import from_json, to_json
from tracks_dagster.track.errors import TrackBroken
from tracks_dagster.track.json_text import MIB, parse_json
from tracks_dagster.track.names import AttemptRef
from tracks_dagster.track.records import Json, canonical_json

BEAT_EVERY_S = 5.0
ALIVE_EVERY_S = 15.0
ASK_EVERY_S = 5.0
SAVE, STACKS = "save", "stacks"  # what a pod can be asked for
POD_PROBLEM = "PodProblem"  # the type of the condition of a pod's own problem
NOT_STARTED = "RanksNotStarted"
# Of one object: its ranks' 64 KiB of log each, or 256 KiB of stacks, as JSON.
POD_BYTES_MAX = 32 * MIB

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class PodBeat:
    """The beats of one pod's ranks. index: the pod's in its Job, which is its node rank; at: when
    the pod put it, empty where it does not say."""

    pod: str
    node: str
    boot_id: str
    index: int
    ranks: tuple[Beat, ...]
    at: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class PodEnd:
    """How the ranks of one pod ended, by their true exit codes and signals; log tails are cleaned.

    ranks: all of the pod; one without an end still runs, or was never started when it has no
    started_at. cgroup, kernel_lines: as in `GangReport`. conditions: what a drill played.
    problem: why ranks were not started, or what went wrong beside them; empty when nothing did.
    """

    pod: str
    node: str
    boot_id: str
    index: int
    ranks: tuple[RankEnd, ...]
    cgroup: Mapping[str, Json] = field(default_factory=dict)
    kernel_lines: tuple[str, ...] = ()
    problem: str = ""
    conditions: tuple[Condition, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """A wish to a gang. uid: a fresh one, of `[A-Za-z0-9-]`; what: SAVE or STACKS."""

    uid: str
    what: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SaveAnswer:
    """Whether a rank was asked to save; problem: why not, when it was not."""

    is_asked: bool
    problem: str = ""


def conditions_of(end: PodEnd, ranks_per_pod: int) -> Iterator[Condition]:
    """Yield what a pod wrote of itself: a drill's conditions, and why it started no ranks."""
    yield from end.conditions
    if end.problem:
        yield Condition(
            type=POD_PROBLEM,
            reason=NOT_STARTED,
            message=end.problem,
            at=None,
            source="supervisor",
            rank=end.index * ranks_per_pod,
        )


def boots_in(reports: Iterable[PodBeat | PodEnd]) -> dict[str, str]:
    """Return node → boot, as pods read it; of a node with several the last one counts."""
    return {each.node: each.boot_id for each in reports if each.node and each.boot_id}


def cgroups_in(ends: Sequence[PodEnd]) -> dict[str, Json]:
    """Return what the pods' memory cgroups counted; of several pods with the index in front."""
    if len(ends) == 1:
        return dict(ends[0].cgroup)
    return {f"pod-{end.index}.{key}": value for end in ends for key, value in end.cgroup.items()}


def gang_prefix(ref: AttemptRef) -> str:
    """Return what all keys of a gang begin with; what follows up to "/" is a pod's uid."""
    return f"{ref.folder}gang/"


def beat_key(ref: AttemptRef, pod_uid: str) -> str:
    """Return the key of a pod's beats."""
    return f"{gang_prefix(ref)}{pod_uid}/beat.json"


def end_key(ref: AttemptRef, pod_uid: str) -> str:
    """Return the key of a pod's end."""
    return f"{gang_prefix(ref)}{pod_uid}/end.json"


def ask_key(ref: AttemptRef) -> str:
    """Return the key of a gang's newest wish."""
    return f"{gang_prefix(ref)}ask.json"


def failed_key(ref: AttemptRef) -> str:
    """Return the key of the object whose presence means that the gang has failed."""
    return f"{gang_prefix(ref)}failed.json"


def stacks_key(ref: AttemptRef, pod_uid: str, ask_uid: str) -> str:
    """Return the key of a pod's answer to STACKS."""
    return f"{gang_prefix(ref)}{pod_uid}/stacks-{ask_uid}.json"


def save_key(ref: AttemptRef, pod_uid: str, ask_uid: str) -> str:
    """Return the key of the answer to SAVE, from the pod of rank 0."""
    return f"{gang_prefix(ref)}{pod_uid}/save-{ask_uid}.json"


def encode_beat(beat: PodBeat) -> bytes:
    """Return a pod's beat as it is stored; the phase by its name."""
    stored = to_json(beat)
    ranks = [{**to_json(rank), "phase": rank.phase.name} for rank in beat.ranks]
    return canonical_json({**stored, "ranks": ranks})


def decode_beat(data: bytes | None) -> PodBeat | None:
    """Return the beat; None where there is none, or where it cannot be read."""
    return _decoded(data, _beat)


def encode_end(end: PodEnd) -> bytes:
    """Return a pod's end as it is stored."""
    return canonical_json(to_json(end))


def decode_end(data: bytes | None) -> PodEnd | None:
    """Return the end; None where there is none, or where it cannot be read."""
    return _decoded(data, lambda stored: from_json(PodEnd, stored))


def encode_ask(ask: Ask) -> bytes:
    """Return a wish as it is stored."""
    return canonical_json(to_json(ask))


def decode_ask(data: bytes | None) -> Ask | None:
    """Return the wish; None where there is none, or where it cannot be read."""
    return _decoded(data, lambda stored: from_json(Ask, stored))


def encode_stacks(dumps: Sequence[StackDump]) -> bytes:
    """Return the dumps of a pod's ranks as they are stored."""
    return canonical_json([to_json(dump) for dump in dumps])


def decode_stacks(data: bytes | None) -> tuple[StackDump, ...] | None:
    """Return the dumps; None where there are none, or where they cannot be read."""
    return _decoded(data, lambda stored: tuple(from_json(StackDump, each) for each in stored))


def encode_save(answer: SaveAnswer) -> bytes:
    """Return the answer to SAVE as it is stored."""
    return canonical_json(to_json(answer))


def decode_save(data: bytes | None) -> SaveAnswer | None:
    """Return the answer; None where there is none, or where it cannot be read."""
    return _decoded(data, lambda stored: from_json(SaveAnswer, stored))


def _beat(stored: Json) -> PodBeat:
    ranks = [{**rank, "phase": Phase[rank["phase"]]} for rank in stored["ranks"]]
    return from_json(PodBeat, {**stored, "ranks": ranks})


def _decoded(data: bytes | None, read: Callable[[Json], T]) -> T | None:
    """Return what `read` makes of the JSON; another version's, or a torn one, is not an error here."""
    if data is None:
        return None
    try:
        return read(parse_json(data, bytes_max=POD_BYTES_MAX))
    except (ValueError, KeyError, TypeError, AttributeError, TrackBroken):
        return None
