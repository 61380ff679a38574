"""Judges an open attempt after something happened to its machine: one verdict, and its evidence. Pure.

What was recorded (track), what is left (the gang's files, the journal) and what this machine shows now
(boot, pids, start times) are compared. What cannot be seen from here is never called dead. A pid alone
proves nothing: after a reboot it is another process's, so pid, start time and boot have to agree before
a process is taken for the one that was recorded.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import Enum

from tracks_dagster.attempts.machine import MachineNow
from tracks_dagster.attempts.ports import GangPhase, GangReport
from tracks_dagster.reasons.evidence import RankEnd
from tracks_dagster.reasons.hangs import Phase
from tracks_dagster.track.bodies import RankPlace
from tracks_dagster.track.names import EXIT_DRAINED, LOCAL, AttemptRef, attempt_key, run_track
from tracks_dagster.track.placement import nodes_of
from tracks_dagster.track.records import Json, format_time
from tracks_dagster.track.states.run_state import AttemptState
from tracks_dagster.track.text.units import about
from tracks_dagster.track.track import log_key

DAEMON_AGE_S_MAX = 120.0  # its watcher ticks every few seconds; two minutes mean that it is gone
ID_CHARACTERS = 12  # of a Dagster run's id, in words
RANKS_SHOWN_MAX = 4  # of a gang, in words; `data` has them all
AS_MEANT = frozenset({0, EXIT_DRAINED})  # exit codes of a rank that ended by itself


class Verdict(Enum):
    """The state of an attempt, or of a run without an open one."""

    ALIVE = "its gang lives and is supervised"
    ORPHANED = "its gang lives and nobody supervises it"
    DEAD = "nothing of its gang lives, and nothing shows that it ended as meant"
    FINISHED_UNRECORDED = "its gang ended as meant, and nobody recorded it"
    NOT_SEEN = "it was placed where nobody can look from here"
    QUEUED = "it was opened, and no gang was ever started for it"
    NOT_STARTED = "the run was declared, and no attempt was ever opened"
    ENDED = "its newest attempt has ended, and what follows is still to be decided"
    REFUSED = "no further attempt is opened by itself"
    DONE = "the run is finished"

    @property
    def word(self) -> str:
        """The verdict's name for people and programs."""
        return self.name.lower()


BAD_VERDICTS = frozenset(
    {Verdict.ORPHANED, Verdict.DEAD, Verdict.FINISHED_UNRECORDED, Verdict.NOT_SEEN}
)
CLOSABLE = frozenset({Verdict.DEAD, Verdict.FINISHED_UNRECORDED})


@dataclass(frozen=True, slots=True, kw_only=True)
class Judgement:
    """A verdict and what it rests on. is_supervised: None where that is not known."""

    verdict: Verdict
    why: str
    signs: tuple[Sign, ...] = ()
    is_supervised: bool | None = None


def judge(
    seen: AttemptObservation, machine: MachineNow, daemon_at: datetime | None, now: datetime
) -> Judgement:
    """Return the verdict on an open attempt. daemon_at: when the daemon ticked last, if it ever did."""
    supervised, watched = supervision(seen, machine, daemon_at, now)
    lives, signs = rank_signs(seen, machine)
    signs = (*gang_signs(seen, machine), *signs, *heartbeat_signs(seen, now), watched)
    verdict, why = _verdict(seen, machine, lives=lives, supervised=supervised)
    if verdict in CLOSABLE and supervised:
        why = f"{why} Its supervisor lives, and is about to record it."
    return Judgement(verdict=verdict, why=why, signs=signs, is_supervised=supervised)


def _verdict(
    seen: AttemptObservation, machine: MachineNow, *, lives: bool, supervised: bool | None
) -> tuple[Verdict, str]:
    """Return the verdict and a sentence with its reason."""
    report = seen.report
    if lives or (report is not None and report.phase is GangPhase.ALIVE):
        if supervised:
            return Verdict.ALIVE, "Its gang lives and is supervised: nothing to do."
        nobody = (
            "nobody supervises it" if supervised is False else "no daemon ticks that would watch"
        )
        return Verdict.ORPHANED, f"Its gang lives and {nobody}: `tracks up` adopts it."
    if report is None:
        return Verdict.NOT_SEEN, f"Not seen from here: {seen.problem}"
    if report.phase is GangPhase.GONE:
        return _gone(seen, machine, report)
    return _never_started_here(seen, machine, report)


def _gone(seen: AttemptObservation, machine: MachineNow, report: GangReport) -> tuple[Verdict, str]:
    """Distinguish an end as meant, which only the record lacks, from one in mid-work."""
    if report.ranks and all(end.exit_code in AS_MEANT for end in report.ranks):
        return Verdict.FINISHED_UNRECORDED, "Every rank wrote down an end as meant."
    unknown = not any(end.has_ended for end in report.ranks)
    if unknown and seen.saved_last:
        return Verdict.FINISHED_UNRECORDED, "Its final checkpoint is committed, and it is gone."
    if unknown and report.beats and all(beat.phase is Phase.ENDING for beat in report.beats):
        return Verdict.FINISHED_UNRECORDED, "Every rank had done its last step, and is gone."
    since = "; the machine was rebooted" if was_rebooted(seen, machine) else ""
    return Verdict.DEAD, f"Nothing of its gang lives{since}: {describe_ends(report.ranks)}."


def _never_started_here(
    seen: AttemptObservation, machine: MachineNow, report: GangReport
) -> tuple[Verdict, str]:
    placed = seen.attempt.placed
    if placed is None:
        host = seen.attempt.claims[-1].body.host if seen.attempt.claims else machine.node
        if host != machine.node and not report.sees_all_nodes:
            return (
                Verdict.NOT_SEEN,
                f"Not seen from here: {host} claimed it, and may have started it.",
            )
        return Verdict.QUEUED, "Opened; no gang of it was ever started."
    elsewhere = [node for node in nodes_of(placed) if node != report.where]
    if elsewhere and not report.sees_all_nodes:
        return Verdict.NOT_SEEN, (
            f"Not seen from here: it was placed on {', '.join(elsewhere[:RANKS_SHOWN_MAX])}, and this "
            f"is {report.where}. Ask there."
        )
    if report.sees_all_nodes:
        return Verdict.DEAD, f"It was placed, and {report.where} has no Job and no pod of it."
    since = "; the machine was rebooted" if was_rebooted(seen, machine) else ""
    return (
        Verdict.DEAD,
        f"It was placed here{since}: nothing of it is left, not even its gang's files.",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Sign:
    """One piece of evidence. cell: what it is evidence for ("verdict", "progress", …).

    source: where it can be looked up: a key of the store, "this machine", "nvidia-smi", "the ledger".
    """

    cell: str
    words: str
    source: str
    data: Mapping[str, Json] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptObservation:
    """What is known of one open attempt. report: its launcher's; None, with `problem`, without one.

    heartbeat_at: of the newest line of rank 0's journal; saved_last: it committed a "final" checkpoint.
    """

    run_id: str
    attempt: AttemptState
    report: GangReport | None
    problem: str | None = None
    heartbeat_at: datetime | None = None
    saved_last: bool = False

    def record(self, seq: int | None) -> str:
        """Return the key of a record of the run, for an evidence's source."""
        return log_key(run_track(self.run_id), seq) if seq is not None else run_track(self.run_id)


def describe_ends(ends: Iterable[RankEnd]) -> str:
    shown = [
        f"rank {end.rank} ended with "
        + (f"signal {end.signal}" if end.signal is not None else f"exit code {end.exit_code}")
        for end in ends
        if end.has_ended
    ]
    more = len(shown) - RANKS_SHOWN_MAX
    words = ", ".join(shown[:RANKS_SHOWN_MAX]) + (f" and {more} more" if more > 0 else "")
    return words or "no rank's end was written down"


def gang_signs(seen: AttemptObservation, machine: MachineNow) -> tuple[Sign, ...]:
    """Return what the launcher found, and the boot that the gang ran on beside the one of now."""
    report, pods = seen.report, _pod_signs(seen)
    if report is None:
        words = seen.problem or "not looked at"
        return (Sign(cell="verdict", words=words, source="the launcher"), *pods)
    never = report.phase is GangPhase.NEVER_STARTED and seen.attempt.placed is not None
    phase = "nothing of it is found, though it was placed" if never else report.phase.value
    ended = [end.rank for end in report.ranks if end.has_ended]
    signs = [
        Sign(
            cell="verdict",
            words=f"gang: {phase}; {describe_ends(report.ranks)}",
            source=_files(seen, report),
            data={
                "phase": report.phase.name.lower(),
                "where": report.where,
                "ranks_ended": ended,
                "exit_codes": [end.exit_code for end in report.ranks],
                "signals": [end.signal for end in report.ranks],
                "beats": {str(b.rank): f"{b.phase.value} in step {b.step}" for b in report.beats},
            },
        ),
        *pods,
    ]
    boots = {p.boot_id for p in _here(seen, machine)}
    if boots:
        same = boots == {machine.boot_id}
        words = "the boot is the one it was placed on" if same else "rebooted since it was placed"
        data = {"recorded": sorted(boots), "now": machine.boot_id}
        source = seen.record(seen.attempt.placed_seq)
        signs.append(Sign(cell="verdict", words=words, source=source, data=data))
    return tuple(signs)


def was_rebooted(seen: AttemptObservation, machine: MachineNow) -> bool:
    """Whether ranks were placed on this machine, and none of them on the boot of now."""
    boots = {place.boot_id for place in _here(seen, machine)}
    return bool(boots) and machine.boot_id not in boots


def _pod_signs(seen: AttemptObservation) -> tuple[Sign, ...]:
    """Name the pods that the attempt was placed in, each with its node; none of it on one machine."""
    placed = seen.attempt.placed
    pods = {
        p.pod: p.node for p in (placed.ranks if placed is not None else ()) if p.pod is not None
    }
    if placed is None or not pods:
        return ()
    count = max(len(pods), len(placed.pod_nodes))
    shown = [f"{pod} on {node}" for pod, node in pods.items()][:RANKS_SHOWN_MAX]
    more = f" and {count - len(shown)} more" if count > len(shown) else ""
    lives = seen.report is not None and seen.report.phase is GangPhase.ALIVE
    now = (
        "not asked" if seen.report is None else "its Job exists" if lives else "none of them lives"
    )
    words = f"placed in {count} pods, {', '.join(shown)}{more}; now: {now}"
    data: dict[str, Json] = {"pods": dict(pods), "pod_nodes": list(placed.pod_nodes)}
    source = seen.record(seen.attempt.placed_seq)
    return (Sign(cell="verdict", words=words, source=source, data=data),)


def _files(seen: AttemptObservation, report: GangReport) -> str:
    if seen.attempt.opened.compute.launcher != LOCAL:
        return f"the cluster, {report.where}" if report.where else "the cluster"
    return f"work/{attempt_key(seen.run_id, seen.attempt.attempt_id)}"


def _here(seen: AttemptObservation, machine: MachineNow) -> list[RankPlace]:
    """Return the recorded ranks whose pids mean something on this machine."""
    placed = seen.attempt.placed
    ranks = placed.ranks if placed is not None else ()
    return [p for p in ranks if p.node == machine.node and p.pod is None]


def rank_signs(seen: AttemptObservation, machine: MachineNow) -> tuple[bool, tuple[Sign, ...]]:
    """Return whether a recorded rank lives, and what became of each that was placed here."""
    places = _here(seen, machine)
    if not places:
        return False, ()
    shown = {p.rank: _process(p.pid, p.pid_started, p.boot_id, machine) for p in places}
    lives = any(alive for alive, _ in shown.values())
    words = "; ".join(f"rank {p.rank}: {shown[p.rank][1]}" for p in places[:RANKS_SHOWN_MAX])
    more = len(shown) - RANKS_SHOWN_MAX
    data = [
        {
            "rank": p.rank,
            "pid": p.pid,
            "pid_started": p.pid_started,
            "pid_started_now": machine.living.get(p.pid),
            "lives": shown[p.rank][0],
        }
        for p in places
    ]
    sign = Sign(
        cell="verdict",
        words=words + (f"; and {more} more" if more > 0 else ""),
        source=seen.record(seen.attempt.placed_seq),
        data={"ranks": data},
    )
    return lives, (sign,)


def _process(pid: int, started: float, boot_id: str, machine: MachineNow) -> tuple[bool, str]:
    """Return whether that very process lives on this machine, and what became of it."""
    now = machine.living.get(pid)
    if boot_id != machine.boot_id:
        taken = ", and its number is another process's now" if now is not None else ""
        return False, f"pid {pid} ended with its boot{taken}"
    if now is None:
        return False, f"pid {pid} is gone"
    if now != started:
        return False, f"pid {pid} is another process: it started at {now:g} s, not {started:g} s"
    return True, f"pid {pid} lives, started at {started:g} s of this boot"


def heartbeat_signs(seen: AttemptObservation, now: datetime) -> tuple[Sign, ...]:
    attempt = seen.attempt
    if attempt.placed is None:
        return ()
    ref = AttemptRef(seen.run_id, attempt.attempt_id)
    source = f"{ref.folder}{attempt.placed.launch_id}/journal"
    if seen.heartbeat_at is None:
        return (Sign(cell="verdict", words="it never shipped a line", source=source),)
    age_s = (now - seen.heartbeat_at).total_seconds()
    data = {"at": format_time(seen.heartbeat_at), "age_s": round(age_s, 1)}
    words = f"its last heartbeat is {about(age_s)} old"
    return (Sign(cell="verdict", words=words, source=source, data=data),)


def supervision(
    seen: AttemptObservation, machine: MachineNow, daemon_at: datetime | None, now: datetime
) -> tuple[bool | None, Sign]:
    """Return whether the newest claim's process lives; where that is not known, whether the daemon
    does, which finds another supervisor for a gang that has lost its own."""
    claims = seen.attempt.claims
    ticks = daemon_at is not None and (now - daemon_at).total_seconds() <= DAEMON_AGE_S_MAX
    daemon = _describe_daemon(daemon_at, now)
    if not claims:
        words = f"no Dagster run has claimed it; {daemon}"
        return False, Sign(cell="verdict", words=words, source=seen.record(seen.attempt.opened_seq))
    claim, body = claims[-1], claims[-1].body
    whose = f"Dagster run {body.dagster_run_id[:ID_CHARACTERS]} on {body.host} claimed it"
    data: dict[str, Json] = {
        "dagster_run_id": body.dagster_run_id,
        "host": body.host,
        "claimed_at": format_time(claim.at),
        "daemon_at": format_time(daemon_at) if daemon_at else None,
    }
    supervised: bool | None
    if body.lets_go:
        supervised = True if ticks else None
        words = f"{whose} and let go of its gang; watch_attempts watches it, and {daemon}"
    elif body.host == machine.node and body.pid is not None:
        supervised, what = _process(body.pid, body.pid_started or 0.0, body.boot_id or "", machine)
        data |= {"pid": body.pid, "pid_started": body.pid_started, "boot_id": body.boot_id}
        words = f"{whose}: {what}; {daemon}"
    elif (
        body.host == machine.node and machine.booted_at is not None and claim.at < machine.booted_at
    ):
        supervised, words = False, f"{whose} before this boot; {daemon}"
    else:
        supervised = True if ticks else None
        words = f"{whose}; whether that lives is not known here; {daemon}"
    source = seen.record(claim.seq)
    return supervised, Sign(cell="verdict", words=words, source=source, data=data)


def _describe_daemon(daemon_at: datetime | None, now: datetime) -> str:
    if daemon_at is None:
        return "no daemon ever ticked on this store"
    age_s = (now - daemon_at).total_seconds()
    if age_s <= DAEMON_AGE_S_MAX:
        return f"the daemon ticked {about(age_s)} ago"
    return f"no daemon has ticked since {format_time(daemon_at)}"
