"""When a gang hangs, and which of its ranks the others wait for. Pure.

A gang hangs when the ranks furthest behind have not moved for longer than the most lenient limit of
the phases that its ranks are in. Those ahead only wait for them: their waiting while another one
saved or evaluated no longer counts once that one moves. In a step the limit is max(60 s, 10 × the 99th
percentile of the step times). Time is counted by looks: a gap between two of them counts for a few
seconds at most, so neither a laptop that slept nor a clock that was set makes a hang.

Also the bytes of a rank's beat.
"""

from __future__ import annotations

import re
import struct
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from tracks_dagster.track.records import Json
from tracks_dagster.track.roles import HANG_FACTOR, HANG_S_MIN, START_S_MAX

CONDITION = "Hang"  # the type of the supervisor's condition, and its reasons
NO_STEP = "NoStep"
DATA_LOADER_STALL = "DataLoaderStall"

SAVE_S_MAX = 900.0  # of a copy, and where the rank gives no time of its own
EVAL_S_MAX = 3600.0  # of an evaluation inside the training loop
END_S_MAX = 900.0  # the last save and the last words
LOOK_S_MAX = 5.0  # what the time between two looks counts at most

FRAMES_SHOWN = 3
# Where Python is in a rank that waits for the others: in a collective, or in a backward whose
# hooks exchange gradients.
_WAITS_FOR_OTHERS = re.compile(
    r"distributed_c10d|all_?reduce|all_?gather|barrier|reduce_scatter|_engine_run_backward"
    r"|torch/distributed/"
)
_FRAME = re.compile(r'File "(?P<path>[^"]+)", line (?P<line>\d+) in (?P<name>\S+)')

_FORMAT = struct.Struct("<QQddI")  # step, count, step_s_p99, may_take_s, phase; its crc32 follows
_CRC = struct.Struct("<I")
BEAT_BYTES = _FORMAT.size + _CRC.size


class Phase(Enum):
    """What a rank is doing; within a step in the order in which it comes to it."""

    STARTING = "starts and meets the other ranks"
    RESTORING = "restores"
    WAITING_FOR_DATA = "waits for data"
    COMPUTING = "computes"
    REPORTING = "waits for the other ranks' report"
    SAVING = "saves"
    EVALUATING = "evaluates"
    ENDING = "has done its last step and ends"


_PHASES = tuple(Phase)


@dataclass(frozen=True, slots=True, kw_only=True)
class Beat:
    """Where one rank is, in a few bytes that outlive its process.

    The rank writes it over the one before at every change of phase; who watches the gang reads the
    file. Only whether it changes matters: it holds no time, so that no two clocks are compared.
    step: the one it is in; count: of its beats so far.

    step_s_p99: 99th percentile of its step times, 0.0 before the first was finished. may_take_s: how
    long the rank itself gives the phase before it moves or fails, 0.0 where it gives no time.
    """

    rank: int
    phase: Phase
    step: int = 0
    count: int = 0
    step_s_p99: float = 0.0
    may_take_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class HangLimits:
    """Seconds without a move, by what the ranks are doing."""

    hang_s_min: float = HANG_S_MIN
    hang_factor: float = HANG_FACTOR
    start_s_max: float = START_S_MAX


@dataclass(frozen=True, slots=True, kw_only=True)
class StackDump:
    """A rank's stack dump. problem: why there is none, when text is empty."""

    rank: int
    text: str
    problem: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Hang:
    """A gang that hangs. stuck_s: since one of the ranks furthest behind moved."""

    beats: tuple[Beat, ...]
    stuck_s: float
    limit_s: float


def limits_of(config: Mapping[str, Json]) -> HangLimits:
    """Return the limits of a run's config; the defaults where it names none."""
    return HangLimits(
        hang_s_min=float(config.get("hang_s", HANG_S_MIN)),
        hang_factor=float(config.get("hang_factor", HANG_FACTOR)),
        start_s_max=float(config.get("start_s", START_S_MAX)),
    )


class HangWatch:
    """Looks at a gang again and again; one watch for one gang."""

    def __init__(self, limits: HangLimits) -> None:
        self._limits = limits
        self._looked_at: float | None = None
        self._known: dict[int, Beat] = {}
        self._stuck_s: dict[int, float] = {}

    def look(self, beats: Sequence[Beat], now_s: float) -> Hang | None:
        """Take in the living ranks' beats at `now_s` (any steady clock); return a hang, or None."""
        passed_s = 0.0 if self._looked_at is None else max(0.0, now_s - self._looked_at)
        self._looked_at = now_s
        for beat in beats:
            is_still = self._known.get(beat.rank) == beat
            before_s = self._stuck_s.get(beat.rank, 0.0)
            self._stuck_s[beat.rank] = before_s + min(passed_s, LOOK_S_MAX) if is_still else 0.0
            self._known[beat.rank] = beat
        stuck_s = min((self._stuck_s[beat.rank] for beat in _furthest_behind(beats)), default=0.0)
        limit_s = max((self._limit_s(beat) for beat in beats), default=0.0)
        if not beats or stuck_s <= limit_s:
            return None
        return Hang(beats=tuple(beats), stuck_s=stuck_s, limit_s=limit_s)

    def _limit_s(self, beat: Beat) -> float:
        """Return the limit of the phase, or more where the rank itself ends it later."""
        own_s = beat.may_take_s + self._limits.hang_s_min if beat.may_take_s > 0.0 else 0.0
        return max(self._phase_limit_s(beat), own_s)

    def _phase_limit_s(self, beat: Beat) -> float:
        match beat.phase:
            case Phase.STARTING | Phase.RESTORING:
                return self._limits.start_s_max
            case Phase.SAVING:
                return SAVE_S_MAX
            case Phase.EVALUATING:
                return EVAL_S_MAX
            case Phase.ENDING:
                return END_S_MAX
        if beat.step_s_p99 <= 0.0:
            return self._limits.start_s_max
        return max(self._limits.hang_s_min, self._limits.hang_factor * beat.step_s_p99)


def laggards(hang: Hang, dumps: Sequence[StackDump]) -> list[Beat]:
    """Return the ranks that the others wait for; all of them where nothing distinguishes them.

    The one furthest behind by step and phase; among equals, those that do not stand in a collective.
    """
    behind = _furthest_behind(hang.beats)
    waiting = {d.rank for d in dumps if d.text and _WAITS_FOR_OTHERS.search(_newest_frames(d.text))}
    busy = [beat for beat in behind if beat.rank not in waiting]
    return busy or behind


def reason_of(behind: Sequence[Beat]) -> str:
    """Return the condition's reason."""
    waits_for_data = all(beat.phase is Phase.WAITING_FOR_DATA for beat in behind)
    return DATA_LOADER_STALL if behind and waits_for_data else NO_STEP


def describe(hang: Hang, dumps: Sequence[StackDump]) -> str:
    """Return the finding in lines: what hangs, then where each rank is."""
    behind = laggards(hang, dumps)
    ranks = ", ".join(str(beat.rank) for beat in behind)
    noun, verb = ("rank", "has") if len(behind) == 1 else ("ranks", "have")
    of_all = f" of {len(hang.beats)}" if len(behind) < len(hang.beats) else ""
    first = (
        f"{noun} {ranks}{of_all} {verb} not moved for {hang.stuck_s:.0f} s "
        f"(limit {hang.limit_s:.0f} s): {behind[0].phase.value} in step {behind[0].step}"
    )
    by_rank = {dump.rank: dump for dump in dumps}
    return "\n".join([first, *(_place(beat, by_rank.get(beat.rank)) for beat in hang.beats)])


def _furthest_behind(beats: Sequence[Beat]) -> list[Beat]:
    """Return the ranks whose step and phase are the least; they are not always one."""
    order = list(Phase)
    places = {beat.rank: (beat.step, order.index(beat.phase)) for beat in beats}
    return [beat for beat in beats if places[beat.rank] == min(places.values())]


def _place(beat: Beat, dump: StackDump | None) -> str:
    text = f"rank {beat.rank} {beat.phase.value} in step {beat.step}"
    if dump is None:
        return text
    if not dump.text:
        return f"{text}; no stack dump: {dump.problem}"
    frames = list(_FRAME.finditer(_newest_frames(dump.text)))[:FRAMES_SHOWN]
    where = " < ".join(f"{f['name']} ({f['path'].rpartition('/')[2]}:{f['line']})" for f in frames)
    return f"{text}; its stack: {where}" if where else text


def _newest_frames(text: str) -> str:
    """Return the frames of the main thread: the one that took the signal, the last in a dump."""
    blocks = re.split(r"\n(?=(?:Current thread|Thread) 0x)", text)
    current = [block for block in blocks if block.startswith("Current thread")]
    return (current or blocks)[-1]


def beat_file(work: Path, rank: int) -> Path:
    """Return the file of a rank's beats, below its gang's folder."""
    return work / "beats" / f"rank-{rank}"


def encode_beat(
    phase: Phase, *, step: int, count: int, step_s_p99: float, may_take_s: float = 0.0
) -> bytes:
    """Return the bytes of a beat."""
    data = _FORMAT.pack(step, count, step_s_p99, may_take_s, _PHASES.index(phase))
    return data + _CRC.pack(zlib.crc32(data))


def decode_beat(rank: int, data: bytes) -> Beat | None:
    """Return the beat, or None for bytes that are not (yet) a whole one."""
    if len(data) != BEAT_BYTES:
        return None
    body, crc = data[: _FORMAT.size], data[_FORMAT.size :]
    if _CRC.unpack(crc) != (zlib.crc32(body),):
        return None
    step, count, step_s_p99, may_take_s, number = _FORMAT.unpack(body)
    if number >= len(_PHASES):
        return None
    return Beat(
        rank=rank,
        phase=_PHASES[number],
        step=step,
        count=count,
        step_s_p99=step_s_p99,
        may_take_s=may_take_s,
    )
