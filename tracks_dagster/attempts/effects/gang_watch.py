"""One living gang, looked at again and again: is it over, does it hang, does it end as it was asked to.

A supervisor looks every second. Where Dagster's slots are few its run lets go once the gang is started,
and the sensor `watch_attempts` looks at each tick. What a watch remembers from one look to the next is
not a record: after a restart it counts from zero, as a new supervisor does.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from tracks_dagster.attempts.effects.closing import LINGER_S, is_over
from tracks_dagster.attempts.effects.evidence import NO_PROBLEM, EndProblem, begin_end
from tracks_dagster.attempts.effects.world import World
from tracks_dagster.attempts.launch import OpenAttempt
from tracks_dagster.attempts.ports import EndsInSteps, GangLauncher, GangPhase, GangReport
from tracks_dagster.ledger.effects.tracks import Tracks
from tracks_dagster.reasons import hangs
from tracks_dagster.reasons.evidence import Condition
from tracks_dagster.reasons.hangs import Beat, Hang, HangWatch, StackDump, limits_of
from tracks_dagster.track.errors import GangError
from tracks_dagster.track.names import AttemptRef
from tracks_dagster.track.records import format_time, sha256_hex
from tracks_dagster.track.states.run_state import AttemptState

POLL_S = 1.0
DRAIN_KILL_S = 15.0  # after its grace the gang is killed here, should nobody have done it
LINGERED = "GangLingered"
HANG_GRACE_S = 5.0  # between SIGTERM and SIGKILL of a gang that hangs: some of it may still save


@dataclass(slots=True, kw_only=True)
class GangWatch:
    """Looks at the gang of one attempt. drain_grace_s: for a gang that is drained, to finish a step and
    save. monotonic: a steady clock, in seconds: one that is set must not end a save.

    report: what the last look saw.
    """

    tracks: Tracks
    gangs: GangLauncher
    ref: AttemptRef
    drain_grace_s: float
    monotonic: Callable[[], float]
    sleep: Callable[[float], None]
    report: GangReport | None = None
    _hangs: HangWatch | None = None
    _drained_at: float | None = None

    def look(self, attempt: AttemptState, *, is_stopped: bool) -> EndProblem | None:
        """Return with what the attempt is to be closed now; None while it goes on.

        A gang that hangs is ended here, its stacks kept first; that takes seconds. is_stopped: whether
        somebody asked for its end: then it is drained.
        """
        self.report = report = self.gangs.observe(self.ref)
        if is_over(report, self.tracks.now()):
            return self._lingers(report)
        self._hangs = self._hangs or HangWatch(limits_of(attempt.opened.config))
        hang = self._hangs.look(judged_beats(report), self.monotonic())
        if hang is not None and self._drained_at is None:
            found = keep_hang(self.tracks, self.gangs, self.ref, hang)
            if not self._has_moved(hang):
                self._end_hung()
                return EndProblem(message=found.message.partition("\n")[0], conditions=(found,))
        if is_stopped:
            if self._drained_at is None:
                self._drained_at = self.monotonic()
            self.gangs.drain(self.ref, grace_s=self.drain_grace_s)
            if self.monotonic() - self._drained_at > self.drain_grace_s + DRAIN_KILL_S:
                return NO_PROBLEM
        return None

    def _lingers(self, report: GangReport) -> EndProblem:
        """Return that all ranks have ended and their place does not end the gang, where that is so;
        closing the attempt ends it. A job of Slurm is so once what runs its script crashed."""
        has_lingered = report.ranks and all(rank.has_ended for rank in report.ranks)
        if report.phase is not GangPhase.ALIVE or not has_lingered:
            return NO_PROBLEM
        found = Condition(
            type=LINGERED,
            reason="RanksEnded",
            message=f"All ranks had ended for {LINGER_S:g} s, and their place had not ended the gang.",
            at=format_time(self.tracks.now()),
            source="supervisor",
        )
        return EndProblem(conditions=(found,))

    def _has_moved(self, hang: Hang) -> bool:
        """Whether a rank has moved, or ended by itself, while the stacks were taken."""
        return tuple(judged_beats(self.gangs.observe(self.ref))) != hang.beats

    def _end_hung(self) -> None:
        """End all ranks, whose stacks are kept: SIGTERM, a moment; closing the attempt kills them."""
        self.gangs.drain(self.ref, grace_s=HANG_GRACE_S)
        give_up_at = self.monotonic() + HANG_GRACE_S
        while self.monotonic() < give_up_at:
            if self.gangs.observe(self.ref).phase is not GangPhase.ALIVE:
                return
            self.sleep(POLL_S)


@dataclass(slots=True, kw_only=True)
class LeftGangs:
    """The gangs that Dagster runs left to `watch_attempts`, as one process has seen them so far.

    shown_seq: up to which record of its run each is shown in Dagster, by the attempt's key. unshown:
    the attempts that were closed and are yet to be shown there. ending: with what each is to be closed
    whose end has begun and takes longer than a look; a hang is stored too, for the next process.
    """

    monotonic: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep
    watches: dict[str, GangWatch] = field(default_factory=dict)
    shown_seq: dict[str, int] = field(default_factory=dict)
    unshown: dict[str, tuple[str, AttemptState]] = field(default_factory=dict)
    ending: dict[str, EndProblem] = field(default_factory=dict)

    def look(self, world: World, found: OpenAttempt) -> EndProblem | None:
        """Look at one of them, as `GangWatch.look`."""
        launcher = found.attempt.opened.compute.launcher
        watch = self.watches.get(found.key) or GangWatch(
            tracks=world.tracks,
            gangs=world.launcher_of(launcher),
            ref=found.ref,
            drain_grace_s=world.drain_grace_s(launcher),
            monotonic=self.monotonic,
            sleep=self.sleep,
        )
        self.watches[found.key] = watch
        return watch.look(found.attempt, is_stopped=found.is_stopped)

    def has_ended(self, world: World, found: OpenAttempt, problem: EndProblem) -> bool:
        """Take a step to the end of a gang where the launcher can; whether it can be closed now."""
        gangs = world.launcher_of(found.attempt.opened.compute.launcher)
        if not isinstance(gangs, EndsInSteps):
            return True
        if found.key not in self.ending and problem != NO_PROBLEM:
            self.ending[found.key] = begin_end(world.tracks, found.ref, problem)
            return False  # finding it took its time: the first step is one of the next tick
        if gangs.end_in_steps(found.ref):
            return True
        self.ending.setdefault(found.key, problem)
        return False

    def forget_all_but(self, run_ids: Sequence[str]) -> None:
        """Forget the attempts of other runs: somebody else closed them."""
        known = frozenset(run_ids)
        for key in [*self.watches, *self.ending]:
            if key.partition("/")[0] not in known:
                self.forget(key)

    def forget(self, key: str) -> None:
        """Forget an attempt that ended, or that somebody supervises again."""
        self.ending.pop(key, None)
        self.watches.pop(key, None)
        self.shown_seq.pop(key, None)


def judged_beats(report: GangReport) -> Sequence[Beat]:
    """Return the beats to judge for a hang; none once a rank has ended, since the others follow it."""
    if report.phase is not GangPhase.ALIVE or any(rank.has_ended for rank in report.ranks):
        return ()
    return report.beats


def keep_hang(tracks: Tracks, gangs: GangLauncher, ref: AttemptRef, hang: Hang) -> Condition:
    """Take a stack dump of every rank, store them, and return the finding as a condition.

    The dumps are objects beside the evidence, named by their sha256. A launcher that cannot dump
    keeps nobody from ending the gang.
    """
    try:
        dumps = gangs.dump_stacks(ref)
    except GangError as error:
        dumps = tuple(StackDump(rank=b.rank, text="", problem=str(error)) for b in hang.beats)
    kept = [
        f"stacks of rank {dump.rank}: {_store_stacks(tracks, ref, tracks.clean(dump.text))}"
        for dump in dumps
        if dump.text
    ]
    behind = hangs.laggards(hang, dumps)
    return Condition(
        type=hangs.CONDITION,
        reason=hangs.reason_of(behind),
        message="\n".join([hangs.describe(hang, dumps), *kept]),
        at=format_time(tracks.now()),
        source="supervisor",
        rank=behind[0].rank if len(behind) == 1 else None,
    )


def _store_stacks(tracks: Tracks, ref: AttemptRef, text: str) -> str:
    data = text.encode()
    key = f"{ref.folder}evidence/{sha256_hex(data)}.txt"
    tracks.store.put(key, data)
    return key
