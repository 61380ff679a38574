"""What a person does after `tracks triage`, first things first."""

from __future__ import annotations

from collections.abc import Iterator

import click

from tracks_dagster.attempts.pace import about
from tracks_dagster.recovery.effects.triage.judge import Triage
from tracks_dagster.recovery.effects.triage.line import Line
from tracks_dagster.recovery.restart_plan import NOW
from tracks_dagster.recovery.triage import CLOSABLE, Verdict
from tracks_dagster.track.names import LOCAL
from tracks_dagster.track.records import parse_time

NAMES_MAX = 6  # of the runs in one sentence
_CLOSABLE = frozenset(verdict.word for verdict in CLOSABLE)
_WITHOUT_GANG = _CLOSABLE | {Verdict.ENDED.word, Verdict.NOT_STARTED.word}


def tell_what_to_do(found: Triage, *, options: str) -> None:
    """Print the steps in their order. options: that this answer was asked with."""
    steps = list(_steps(found, options))
    if not steps:
        click.echo("\nThere is nothing to do.")
        return
    told = [f"  {number}. {step}" for number, step in enumerate(steps, start=1)]
    click.echo("\n".join(["", "What to do:", *told]))


def daemon_told(found: Triage) -> str:
    """Say when the daemon ticked last: one that was lost just now is not known to be."""
    daemon = found.daemon
    if daemon.at is None:
        return "no daemon ever ticked on this store"
    if not daemon.ticks:
        return f"no daemon is up, one ticked last {daemon.at[:16]}Z"
    age_s = (parse_time(found.at) - parse_time(daemon.at)).total_seconds()
    return f"the daemon ticked {about(age_s)} ago"


def unkept_told(found: Triage) -> Iterator[str]:
    """Say which part of the order nobody keeps beside a daemon, if there is one."""
    queued = [e for e in found.unkept if found.line(e).verdict == Verdict.QUEUED.word]
    if queued:
        yield (
            "Open already, and started at once unless launch_attempts is switched off in the UI: "
            f"{_names(queued)}."
        )
    unopened = [each for each in found.unkept if each not in queued]
    if not unopened:
        return
    names = _names(unopened)
    opens = f"The daemon knows no devices: it opens {names} at once, whatever the order says"
    if found.daemon.ticks and not found.daemon.openers:
        yield f"The order is kept: the sensors that would open {names} are switched off."
        return
    sensors = ", ".join(found.daemon.openers) or "watch_attempts and the retry sensors"
    yield f"{opens}, unless {sensors} are switched off in the UI."


def _steps(found: Triage, options: str) -> Iterator[str]:
    closable = [e.run_id for e in found.lines if e.verdict in _CLOSABLE and not e.is_supervised]
    opens = [
        each.run_id for each in found.plan if each.starts == NOW and _opens(found, each.run_id)
    ]
    adopted = [e.run_id for e in found.lines if e.verdict == Verdict.ORPHANED.word]
    unseen = [e.run_id for e in found.lines if e.verdict == Verdict.NOT_SEEN.word]
    if closable or opens:
        acts = []
        if closable:
            acts.append(f"records the end of {_names(closable)}")
        if opens:
            acts.append(f"opens {_names(opens)}, or says until when a backoff lasts")
        command = " ".join(word for word in ("tracks triage", options, '--apply --why "…"') if word)
        yield f"`{command}` {' and '.join(acts)}."
    queued = [e.run_id for e in found.lines if e.verdict == Verdict.QUEUED.word]
    followed = [e.run_id for e in found.lines if _is_followed(e)]
    waiting = list(dict.fromkeys((*adopted, *queued, *opens, *followed)))
    if waiting and not found.daemon.ticks:
        yield " ".join([f"`tracks up` goes on with {_names(waiting)}.", *unkept_told(found)])
    else:
        if adopted:
            words = f"The daemon adopts {_names(adopted)} within seconds"
            yield f"{words}; if nothing happens, it is gone: `tracks up` starts another."
        yield from unkept_told(found)
    shown = {e.run_id for e in found.lines}
    late = {
        key: words for key, words in found.daemon.late.items() if key.partition("/")[0] in shown
    }
    for key, words in list(late.items())[:NAMES_MAX]:
        yield f"See why {key} does not come: {words}."
    if unseen:
        yield f"Look at {_names(unseen)} from where they run: `Why` says what is not seen from here."
    refused = [e.run_id for e in found.lines if e.verdict == Verdict.REFUSED.word]
    if refused:
        yield f"{_names(refused)}: no retry by itself; `Why` says what to change."


def _opens(found: Triage, run_id: str) -> bool:
    """Whether `--apply` opens the next attempt: none is open, or it closes the one that is."""
    line = found.line(run_id)
    is_left = line.verdict in _CLOSABLE and line.is_supervised
    return line.verdict != Verdict.QUEUED.word and not is_left


def _is_followed(line: Line) -> bool:
    """Whether only a daemon does what follows: the finish of a run that has all its steps or was
    stopped, a start on a cluster, or what comes after an end that a living supervisor records."""
    if line.standing == "finishing":
        return True
    if line.held_by is not None:
        return line.held_by == "stop" and line.verdict in _WITHOUT_GANG
    if line.is_due and line.launcher != LOCAL:
        return True
    return line.verdict in _CLOSABLE and (bool(line.is_supervised) or not line.is_due)


def _names(run_ids: list[str]) -> str:
    more = len(run_ids) - NAMES_MAX
    return ", ".join(run_ids[:NAMES_MAX]) + (f" and {more} more" if more > 0 else "")
