"""`tracks triage`: the true state of every run after a reboot, and the order in which to restart.

On a terminal: one table, below it what each of its cells rests on, then what to do.
"""

from __future__ import annotations

import os
import shlex
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import click

from tracks_dagster.attempts.machine import CPU_SLOTS, describe_size
from tracks_dagster.attempts.pace import Span, format_span
from tracks_dagster.cli import BAD_NEWS
from tracks_dagster.cli.common import as_json, by_option, open_app, print_json, print_table
from tracks_dagster.cli.terminal import RECORDED
from tracks_dagster.reading import open_ledger_to_read, open_store_to_read
from tracks_dagster.scheduling.devices_given import DevicesGiven
from tracks_dagster.scheduling.model import NEVER, Plan
from tracks_dagster.settings import Settings, usable_policy
from tracks_dagster.track.body_json import to_json
from tracks_dagster.track.errors import InvalidInput
from tracks_dagster.track.names import LOCAL, attempt_key, check_run_id, parse_eval_attempt_key
from tracks_dagster.track.records import parse_time
from tracks_dagster.track.text.redact import redact
from tracks_dagster.track.text.safe_text import check_words
from tracks_dagster.track.text.units import about, size_bytes
from tracks_dagster.wings.triage.effects.line import Line
from tracks_dagster.wings.triage.effects.reading import RUNS_MAX
from tracks_dagster.wings.triage.effects.triage import GivenDevices, Sources, Triage, triage
from tracks_dagster.wings.triage.judging import BAD_VERDICTS, CLOSABLE, Sign, Verdict
from tracks_dagster.wiring import launchers, utc_now

if TYPE_CHECKING:
    from tracks_dagster.wings.triage.effects.applying import Act

DEVICES_MAX = 100_000
WHY = "after an incident"
EVIDENCE_RUNS_MAX = 20  # whose evidence is shown in full; that of all is in --json
SECTION_LINES_MAX = 40
CODE_RUNS_MAX = 10  # that share one code position, by name
DONE, RUNNING, QUEUED = "done", "running", "queued"
_TITLES = ("run", "state", "progress", "epoch", "commit", "time left")
NAMES_MAX = 6  # of the runs in one sentence
_CLOSABLE = frozenset(verdict.word for verdict in CLOSABLE)
_WITHOUT_GANG = _CLOSABLE | {Verdict.ENDED.word, Verdict.NOT_STARTED.word}


@click.command("triage")
@click.argument("run_ids", metavar="[RUN…]", nargs=-1)
@click.option("--family", help="All runs of this model family, those that are over too.")
@click.option(
    "--devices",
    type=click.IntRange(0, DEVICES_MAX),
    help="Plan for so many accelerators of this machine.",
)
@click.option("--device-memory", metavar="SIZE", help="Of each of them, for example 24GiB.")
@click.option("--apply", "applies", is_flag=True, help="Record ends, and open what fits now.")
@click.option(
    "--why",
    type=RECORDED,
    default=WHY,
    show_default=True,
    help="Of --apply; it is recorded.",
)
@by_option
@as_json
@click.pass_context
def triage_command(
    ctx: click.Context,
    run_ids: tuple[str, ...],
    family: str | None,
    devices: int | None,
    device_memory: str | None,
    applies: bool,
    why: str,
    by: str,
    as_json: bool,
) -> None:
    """Show whether each RUN, or each one that is not over, lives, and what to start first.

    Needs no daemon, and without --apply changes nothing. Exit with 1 when a gang is dead, orphaned, not
    seen from here, or ended without a record; with --apply, when one is left so, or an act failed.
    """
    check_words({"why": why, "by": by})
    if run_ids and family is not None:
        raise InvalidInput("Name runs or a --family, not both.")
    settings = Settings.from_environment()
    asked = _given(settings.devices, devices, _memory(device_memory))
    sources = _open(settings)
    names = tuple(check_run_id(run_id) for run_id in run_ids)
    found = triage(sources, asked, run_ids=names, family=family)
    acts = _apply(found, by=by, why=why) if applies else ()
    if as_json:
        print_json({**to_json(found), "acts": [to_json(act) for act in acts]})
    else:
        click.echo(_head(found))
        if applies:
            print_acts(found, acts)
        else:
            print_steps(found, options=_options(run_ids, family, devices, device_memory))
        print_triage(found)
    ctx.exit(_exit_code(found, acts, applies=applies))


def _apply(found: Triage, *, by: str, why: str) -> tuple[Act, ...]:
    from tracks_dagster.wings.triage.effects.applying import Acting, apply

    app = open_app()
    rules, problem = app.usable_rules()
    if problem is not None:
        click.echo(problem, err=True)
    world = replace(app.world(app.policy), rules=rules)
    return apply(found, Acting(world=world, by=by, why=why))


def _exit_code(found: Triage, acts: tuple[Act, ...], *, applies: bool) -> int:
    """Return 1 for bad news: what was found, or after --apply what is left of it or failed."""
    if any(act.is_bad for act in acts):
        return BAD_NEWS
    bad = {verdict.word for verdict in (BAD_VERDICTS - CLOSABLE if applies else BAD_VERDICTS)}
    return BAD_NEWS if any(line.verdict in bad for line in found.lines) else 0


def _options(
    run_ids: tuple[str, ...], family: str | None, devices: int | None, device_memory: str | None
) -> str:
    """Return what this answer was asked with, for the command that acts on it."""
    given = {"--family": family, "--devices": devices, "--device-memory": device_memory}
    named = [word for name, value in given.items() if value is not None for word in (name, value)]
    return shlex.join([str(word) for word in (*run_ids, *named)])


def _given(machine: DevicesGiven, devices: int | None, memory_bytes: int | None) -> GivenDevices:
    """Return what to plan for: what a person gives here, else the devices that the daemon gives out."""
    return GivenDevices(
        devices=devices,
        memory_bytes=memory_bytes,
        slots=machine.slots or machine.pretended or max(CPU_SLOTS, os.cpu_count() or 1),
        hides_gpus=machine.hides_gpus,
    )


def _memory(text: str | None) -> int | None:
    if text is None:
        return None
    try:
        return size_bytes(text)
    except ValueError as error:
        raise InvalidInput(f"--device-memory {error}") from error


def print_triage(found: Triage) -> None:
    """Print the state of every run, the order of the restart, and last the evidence."""
    click.echo()
    if not found.lines:
        click.echo(
            "No training run is open; `tracks triage --family NAME` shows those that are over."
        )
    else:
        print_table(_TITLES, map(_cells, found.lines))
    for title, lines in (
        ("Why:", list(_whys(found.lines))),
        ("Metrics, which are not progress:", list(_metrics(found.lines))),
        ("Pace, each by its own steps:", list(_paces(found.lines))),
        ("Code:", list(_code(found.lines))),
        ("Device memory by nvidia-smi:", list(_devices(found))),
        ("Device memory that no living attempt accounts for:", list(_orphans(found))),
    ):
        if lines:
            click.echo("\n".join(["", title, *_bounded(lines)]))
    if found.plan.order:
        click.echo(
            "\n".join(
                ["", f"To start, in this order ({found.room}):", *_bounded(list(_plan(found.plan)))]
            )
        )
    if evals := list(_waiting_evals(found)):
        click.echo("\n".join(["", "Evals that wait for devices:", *_bounded(evals)]))
    for words in _unseen(found):
        click.echo(f"\n{words}")
    if found.lines:
        click.echo("\n".join(["", "Evidence:", *_evidence(found.lines)]))


def _waiting_evals(found: Triage) -> Iterator[str]:
    shown = {line.run_id for line in found.lines}
    for key, words in found.daemon.queue.items():
        named = parse_eval_attempt_key(key)
        if named is not None and named[0] in shown:
            yield f"  {key}: {words}"


def _unseen(found: Triage) -> Iterator[str]:
    """Yield which runs were not looked at, where there are more than RUNS_MAX."""
    if found.more:
        yield f"These are {RUNS_MAX} runs, and there are more: name those that you mean."
    if found.unfinished_more and found.plan.order:
        yield (
            f"More than {RUNS_MAX} runs are not over, and newer ones were not looked at: they may hold "
            "devices that this order gives away."
        )


def _bounded(lines: list[str]) -> list[str]:
    """Return the first lines of a section, and how many more there are."""
    more = len(lines) - SECTION_LINES_MAX
    if more <= 0:
        return lines
    return [*lines[:SECTION_LINES_MAX], f"  and {more} more, which --json has"]


def print_acts(found: Triage, acts: Sequence[Act]) -> None:
    """Print what was done, and what happens to the rest."""
    click.echo("\nWhat was done:" if acts else "\nThere was nothing to do.")
    for act in acts:
        record = f" (record {act.seq})" if act.seq is not None else ""
        click.echo(f"  {act.run_id}: {act.what}{record}: {act.why}")
    words = "The daemon starts what was opened, and opens what waits for a backoff."
    if not found.daemon.ticks:
        words = (
            "No daemon is up: nothing that was opened starts before `tracks up`, which also opens what "
            "waits for a backoff, and finishes what has all its steps or was stopped."
        )
    words += (
        " The next `tracks triage --apply` opens that too, and what was left for want of room, if "
        "there is some."
    )
    click.echo(f"\n{words}")


def _head(found: Triage) -> str:
    booted = f", booted {found.booted_at[:16]}Z" if found.booted_at else ""
    counts = Counter(_standing(line).replace(", ", " and ") for line in found.lines)
    standings = ", ".join(f"{count} {standing}" for standing, count in counts.items())
    word = "run" if len(found.lines) == 1 else "runs"
    runs = f"\n{len(found.lines)} {word}: {standings}." if found.lines else ""
    took = f"Known after {found.took_s:.1f} s."
    return f"{found.at[:16]}Z on {found.node}{booted}; {describe_daemon(found)}. {took}{runs}"


def _cells(line: Line) -> tuple[str, ...]:
    is_unknown = line.epoch is None and line.committed_step > 0
    epoch = "–" if line.epochs is None or is_unknown else f"{line.epoch or 0}/{line.epochs}"
    return line.run_id, _standing(line), _progress(line), epoch, _commit(line), _left(line)


def _standing(line: Line) -> str:
    """Return the standing, with the verdict where that adds something."""
    is_plain = line.standing in (DONE, QUEUED, line.verdict)
    return line.standing if is_plain else f"{line.standing}, {line.verdict}"


def _progress(line: Line) -> str:
    if line.steps is None or line.percent is None:
        return f"step {line.step}"
    return f"{line.percent:.1f} %, {line.step}/{line.steps}"


def _commit(line: Line) -> str:
    """Return the step that a restart resumes from, and what ran since: lost, unless it still runs."""
    if line.lost_steps == 0:
        return str(line.committed_step) if line.committed_at is not None else "–"
    seconds = f", {about(line.lost_s)}" if line.lost_s is not None else ""
    fate = "at risk" if line.standing == RUNNING else "lost"
    return f"{line.committed_step}; {fate}: {line.lost_steps} steps{seconds}"


def _left(line: Line) -> str:
    if line.left_s is None:
        return "not known"
    if line.left_s == 0:
        return "–"
    span = Span(seconds=line.left_s, low_s=line.left_low_s, high_s=line.left_high_s)
    return format_span(span) if line.pace is not None else f"{format_span(span)}, declared"


def _code(lines: Sequence[Line]) -> Iterator[str]:
    """Yield each code version once, with the runs that share it."""
    runs: dict[str, list[str]] = {}
    for line in lines:
        runs.setdefault(line.code, []).append(line.run_id)
    for code, run_ids in runs.items():
        more = len(run_ids) - CODE_RUNS_MAX
        yield f"  {code}: {', '.join(run_ids[:CODE_RUNS_MAX])}" + (
            f" and {more} more" if more > 0 else ""
        )


def _metrics(lines: Sequence[Line]) -> Iterator[str]:
    for line in lines:
        if line.metrics and line.standing != DONE:
            metrics = ", ".join(
                f"{name} {value:.6g}" for name, value in sorted(line.metrics.items())
            )
            yield f"  {line.run_id}: {metrics} (step {line.metrics_step})"


def _whys(lines: Sequence[Line]) -> Iterator[str]:
    for line in lines:
        if line.standing != DONE:
            name = line.run_id
            if line.attempt_id is not None:
                name = attempt_key(line.run_id, line.attempt_id)
            yield f"  {name}: {line.why}"


def _plan(plan: Plan) -> Iterator[str]:
    for place, key in enumerate(plan.order, start=1):
        if (start := plan.start(key)) is not None:
            yield f"  {place}. {key}: now on {', '.join(start.devices)} ({start.why})"
        elif (waits := plan.wait(key)) is not None:
            when = "later" if waits.in_s is None else f"in about {about(waits.in_s)}"
            when = "never here" if waits.starts == NEVER else when
            yield f"  {place}. {key}: {when} ({waits.why})"


def _paces(lines: Sequence[Line]) -> Iterator[str]:
    for line in lines:
        if line.step_s is None or line.standing == DONE:
            continue
        step = Span(seconds=line.step_s, low_s=line.step_low_s, high_s=line.step_high_s)
        epoch = f", {line.epoch_s / 60:.2f} min an epoch" if line.epoch_s is not None else ""
        yield f"  {line.run_id}: {format_span(step)} a step{epoch}; {line.steps_left} steps are left"


def _devices(found: Triage) -> Iterator[str]:
    for gpu in found.devices.gpus:
        used, total = describe_size(gpu.used_bytes), describe_size(gpu.total_bytes)
        yield f"  {gpu.uuid} ({gpu.name}): {used} of {total} in use"
    if found.devices.problem is not None:
        yield f"  not known: {found.devices.problem}"


def _orphans(found: Triage) -> Iterator[str]:
    for each in found.orphan_memory:
        yield f"  {describe_size(each.used_bytes)} of {each.device} {each.uuid}: {each.words}"


def _evidence(lines: Sequence[Line]) -> Iterator[str]:
    open_first = sorted(lines, key=lambda line: line.standing == DONE)
    for line in open_first[:EVIDENCE_RUNS_MAX]:
        yield f"  {line.run_id}"
        yield from (f"    {_sign(sign)}" for sign in line.signs)
    if len(open_first) > EVIDENCE_RUNS_MAX:
        more = len(open_first) - EVIDENCE_RUNS_MAX
        yield f"  and of {more} more runs: name a run, or use --json"


def _sign(sign: Sign) -> str:
    return f"{sign.cell}: {sign.words} [{sign.source}]"


def print_steps(found: Triage, *, options: str) -> None:
    """Print the steps in their order. options: that this answer was asked with."""
    steps = list(_steps(found, options))
    if not steps:
        click.echo("\nThere is nothing to do.")
        return
    numbered = [f"  {number}. {step}" for number, step in enumerate(steps, start=1)]
    click.echo("\n".join(["", "What to do:", *numbered]))


def describe_daemon(found: Triage) -> str:
    """Return when the daemon ticked last; one that died a moment ago still looks alive."""
    daemon = found.daemon
    if daemon.at is None:
        return "no daemon ever ticked on this store"
    if not daemon.ticks:
        return f"no daemon is up, one ticked last {daemon.at[:16]}Z"
    age_s = (parse_time(found.at) - parse_time(daemon.at)).total_seconds()
    return f"the daemon ticked {about(age_s)} ago"


def _steps(found: Triage, options: str) -> Iterator[str]:
    closable = [e.run_id for e in found.lines if e.verdict in _CLOSABLE and not e.is_supervised]
    opens = [key for key in found.plan.order if found.plan.start(key) and _opens(found, key)]
    adopted = [e.run_id for e in found.lines if e.verdict == Verdict.ORPHANED.word]
    unseen = [e.run_id for e in found.lines if e.verdict == Verdict.NOT_SEEN.word]
    if closable or opens:
        acts = []
        if closable:
            acts.append(f"records the end of {_names(closable)}")
        if opens:
            acts.append(f"opens {_names(opens)}, or reports until when a backoff lasts")
        command = " ".join(word for word in ("tracks triage", options, '--apply --why "…"') if word)
        yield f"`{command}` {' and '.join(acts)}."
    queued = [e.run_id for e in found.lines if e.verdict == Verdict.QUEUED.word]
    followed = [e.run_id for e in found.lines if _is_followed(e)]
    waiting = list(dict.fromkeys((*adopted, *queued, *opens, *followed)))
    if waiting and not found.daemon.ticks:
        yield f"`tracks up` continues {_names(waiting)}."
    elif adopted:
        words = f"The daemon adopts {_names(adopted)} within seconds"
        yield f"{words}; if nothing happens, it is gone: `tracks up` starts another."
    shown = {e.run_id for e in found.lines}
    late = {
        key: words for key, words in found.daemon.late.items() if key.partition("/")[0] in shown
    }
    for key, words in list(late.items())[:NAMES_MAX]:
        yield f"See why {key} is late: {words}."
    if unseen:
        yield f"Look at {_names(unseen)} from where they run: `Why` names what is not seen from here."
    refused = [e.run_id for e in found.lines if e.verdict == Verdict.REFUSED.word]
    if refused:
        yield f"{_names(refused)}: no retry by itself; `Why` names what to change."


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


def _open(settings: Settings) -> Sources:
    """Return what is looked at: nothing is made, probed or written.

    Raises as `open_store_to_read` and `open_ledger_to_read`.
    """
    from tracks_dagster.attempts.effects.local.this_machine import ThisMachine

    store = open_store_to_read(settings)
    clean = partial(redact, secrets=settings.secrets)
    return Sources(
        store=store,
        ledger=open_ledger_to_read(settings),
        launcher_of=launchers(settings, store, clean),
        machine=ThisMachine(),
        now=utc_now,
        clean=clean,
        scheduling=usable_policy(settings)[0].scheduling,
    )
