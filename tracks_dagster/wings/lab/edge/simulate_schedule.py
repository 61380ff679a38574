"""`tracks simulate --schedule`: a queue under several policies of scheduling, side by side."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import click

from tracks_dagster.cli.common import print_json, print_table
from tracks_dagster.ledger.ports import Ledger
from tracks_dagster.scheduling.policy import SchedulingPolicy
from tracks_dagster.track.errors import InvalidInput
from tracks_dagster.track.records import Json
from tracks_dagster.track.text.units import counted
from tracks_dagster.wings.lab.simulation.effects.own_queue import ASSUMPTIONS, LEDGER, own_workload
from tracks_dagster.wings.lab.simulation.effects.schedule_page import write_picture
from tracks_dagster.wings.lab.simulation.schedule import play_under
from tracks_dagster.wings.lab.simulation.schedule_figures import (
    MEANINGS,
    YOURS,
    ClassFigures,
    Figures,
    choices,
    figures,
    figures_json,
)
from tracks_dagster.wings.lab.simulation.schedule_picture import Panel, span_text
from tracks_dagster.wings.lab.simulation.served import NO_OVERHEADS, Overheads
from tracks_dagster.wings.lab.simulation.workload_file import read_workload
from tracks_dagster.wings.lab.simulation.workloads import (
    ACME,
    DEVICES_PER_NODE,
    EIGHT_NODES,
    GENERATED,
    MEMORY_BYTES,
    NODES,
    PAI,
    Workload,
    acme,
    cluster,
    eight_nodes,
    generated,
    pai,
)
from tracks_dagster.wiring import utc_now

DRAWN = {GENERATED: generated, PAI: pai, ACME: acme}
MADE = (EIGHT_NODES, *DRAWN, LEDGER)
SUBMISSIONS = 2000  # of a drawn workload, by default
BRING_UP_S, SAVE_S, TEAR_DOWN_S = 60.0, 10.0, 5.0
FILE_BYTES_MAX = 256 * 1024 * 1024
WHY_SHOWN_MAX = 5
LONG_FROM = 10_000  # submissions; from then on a play takes seconds, and says which one it is


@dataclass(frozen=True, slots=True, kw_only=True)
class Given:
    """The options of the command. None: not given."""

    schedule: str
    nodes: int | None
    devices_per_node: int | None
    submissions: int | None
    seed: int
    last_s: float
    save_s: float | None
    restart_s: float | None
    grace_s: float | None
    picture: Path | None


def simulate_schedule(
    given: Given, policy: SchedulingPolicy, ledger: Ledger | None, *, as_json: bool
) -> None:
    """Play the queue under each policy and print what comes of it. ledger: for its own queue."""
    workload = _workload(given, policy, ledger)
    overheads = _overheads(given)
    panels = []
    for choice in choices(policy):
        if len(workload.submissions) >= LONG_FROM:
            click.echo(f"playing {choice.name} …", err=True)
        played = play_under(choice.policy, workload, overheads)
        panels.append(Panel(figures=figures(choice, played), played=played))
    if given.picture is not None:
        write_picture(given.picture, panels, workload)
    rows = [panel.figures for panel in panels]
    if as_json:
        print_json(_json(workload, overheads, given, rows))
    else:
        _print(workload, overheads, given, rows)


def _workload(given: Given, policy: SchedulingPolicy, ledger: Ledger | None) -> Workload:
    """Return what is played: made here, from the ledger, or from a person's file."""
    name = given.schedule
    if name == EIGHT_NODES:
        if (given.nodes, given.devices_per_node) != (None, None):
            raise InvalidInput(
                f"{EIGHT_NODES} has eight nodes of one device; leave their numbers out."
            )
        _no_submissions(given)
        return eight_nodes()
    if name == LEDGER:
        _no_submissions(given)
        assert ledger is not None  # the command opens it for this name
        since = utc_now() - timedelta(seconds=given.last_s)
        return own_workload(
            ledger, since=since, nodes=given.nodes, devices_per_node=given.devices_per_node
        )
    devices = cluster(
        given.nodes or NODES,
        given.devices_per_node or DEVICES_PER_NODE,
        memory_bytes=MEMORY_BYTES,
    )
    if name in DRAWN:
        return DRAWN[name](given.submissions or SUBMISSIONS, seed=given.seed, devices=devices)
    _no_submissions(given)
    path = Path(name)
    return read_workload(_read_text(path), source=str(path), devices=devices, policy=policy)


def _no_submissions(given: Given) -> None:
    if given.submissions is not None:
        raise InvalidInput(f"--submissions is for what is drawn: {', '.join(DRAWN)}.")


def _read_text(path: Path) -> str:
    """Return what a person's file holds; raises InvalidInput."""
    try:
        with path.open("rb") as file:
            data = file.read(FILE_BYTES_MAX + 1)
        if len(data) > FILE_BYTES_MAX:
            raise InvalidInput(f"{path} has more than {FILE_BYTES_MAX // 2**20} MiB; split it.")
        return data.decode()
    except OSError as error:
        raise InvalidInput(
            f"{path} cannot be read ({error.strerror}). Give a CSV file as in docs/simulation.md, or "
            f"one of {', '.join(MADE)}."
        ) from error
    except UnicodeDecodeError as error:
        raise InvalidInput(f"{path} is not UTF-8: byte {error.start} is not text.") from error


def _overheads(given: Given) -> Overheads:
    shipped = NO_OVERHEADS
    if given.schedule != EIGHT_NODES:  # whose times are to be followed by hand
        shipped = Overheads(bring_up_s=BRING_UP_S, save_s=SAVE_S, tear_down_s=TEAR_DOWN_S)
    return Overheads(
        bring_up_s=shipped.bring_up_s if given.restart_s is None else given.restart_s,
        save_s=shipped.save_s if given.save_s is None else given.save_s,
        tear_down_s=shipped.tear_down_s,
        notice_s=given.grace_s,
    )


def _json(
    workload: Workload, overheads: Overheads, given: Given, rows: Sequence[Figures]
) -> dict[str, Json]:
    return {
        "source": "schedule",
        "workload": workload.name,
        "origin": workload.origin,
        "submissions": len(workload.submissions),
        "nodes": len({device.node for device in workload.devices}),
        "devices": len(workload.devices),
        "parameters": {
            "start_s": overheads.bring_up_s,
            "save_s": overheads.save_s,
            "end_s": overheads.tear_down_s,
            "grace_s": overheads.notice_s,
            "seed": given.seed,
        },
        "idle_held_s_max": overheads.idle_s_max,
        "assumptions": list(_assumptions(workload)),
        "rows": [figures_json(row) for row in rows],
        "picture": None if given.picture is None else str(given.picture),
    }


def _print(workload: Workload, overheads: Overheads, given: Given, rows: Sequence[Figures]) -> None:
    nodes = len({device.node for device in workload.devices})
    click.echo(f"{workload.name}: {workload.origin}")
    click.echo(
        f"{counted(len(workload.submissions), 'submission')} on "
        f"{counted(len(workload.devices), 'device')} of {counted(nodes, 'node')}; start "
        f"{span_text(overheads.bring_up_s)}, save {span_text(overheads.save_s)}, end "
        f"{span_text(overheads.tear_down_s)}"
    )
    click.echo()
    _print_policies(rows)
    click.echo()
    _print_classes("95 % waited", rows, lambda each: span_text(each.wait.p95_s))
    if any(row.all.missed for row in rows):
        click.echo()
        _print_classes("missed", rows, lambda each: str(each.missed))
    click.echo()
    for line in (*MEANINGS, *_notes(overheads, rows)):
        click.echo(line)
    for line in _assumptions(workload):
        click.echo(f"assumed: {line}")
    if given.picture is not None:
        click.echo(f"picture: {given.picture}")


def _print_policies(rows: Sequence[Figures]) -> None:
    numbers = ("median", "95 %", "used", "idle", "frag.", "moved", "lost", "missed")
    cells = (
        (
            _name(row),
            span_text(row.all.wait.median_s),
            span_text(row.all.wait.p95_s),
            f"{row.working:.0%}",
            f"{row.waited_free:.1%}",
            f"{row.fragmented:.1%}",
            str(row.moves),
            str(row.lost_steps),
            str(row.all.missed),
        )
        for row in rows
    )
    print_table(("policy", *numbers), cells, right=numbers)


def _print_classes(
    title: str, rows: Sequence[Figures], cell: Callable[[ClassFigures], str]
) -> None:
    """Print a line a class and a column a policy."""
    names = [row.policy for row in rows]
    lines = (
        (each.name, str(each.submissions), *(cell(row.classes[place]) for row in rows))
        for place, each in enumerate(rows[0].classes)
    )
    print_table((title, "of", *names), lines, right=("of", *names))


def _name(row: Figures) -> str:
    return f"{row.policy} *" if row.is_yours and row.policy != YOURS else row.policy


def _notes(overheads: Overheads, rows: Sequence[Figures]) -> Iterator[str]:
    yours = next(row for row in rows if row.is_yours)
    if yours.policy != YOURS:
        yield f"* is the policy of this home: {yours.policy}"
    idle_s = max(row.idle_held_s for row in rows)
    yield (
        f"held without work: {span_text(idle_s)} at most in one go (bound "
        f"{span_text(overheads.idle_s_max)}: to start and to end)"
    )
    found = rows[0].prediction
    if found is not None:
        yield (
            f"recurrence predicted {found.predicted} of {found.submissions}: half within "
            f"{found.median_error:.0%}, 90 % within {found.p90_error:.0%}, {found.short:.0%} short"
        )
    for row in rows:
        for line in row.why_not[:WHY_SHOWN_MAX]:
            yield f"{row.policy}: never ran: {line}"
        if len(row.why_not) > WHY_SHOWN_MAX:
            yield f"{row.policy}: and {len(row.why_not) - WHY_SHOWN_MAX} more never ran"


def _assumptions(workload: Workload) -> Sequence[str]:
    return ASSUMPTIONS if workload.name == LEDGER else ()
