"""`tracks simulate`: what other policies would make of a history, or of a queue."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import click

from tracks_dagster.cli.common import as_json, print_json, print_table
from tracks_dagster.reading import open_ledger_to_read
from tracks_dagster.retry.policy import HOUR_S, RetryPolicy
from tracks_dagster.settings import Settings, load_policy, read_policy_file
from tracks_dagster.track.errors import InvalidInput
from tracks_dagster.track.json_text import parse_json
from tracks_dagster.track.records import Json, format_time
from tracks_dagster.track.text.units import DURATION_WORDS, duration, duration_s, or_none
from tracks_dagster.wings.lab.edge.simulate_schedule import Given, simulate_schedule
from tracks_dagster.wings.lab.simulation.compare import (
    EVERY_S,
    OURS,
    Row,
    best_ettr,
    choices,
    compare,
    pool_choices,
    row_json,
)
from tracks_dagster.wings.lab.simulation.effects.own_queue import LEDGER
from tracks_dagster.wings.lab.simulation.effects.schedule_page import check_picture
from tracks_dagster.wings.lab.simulation.effects.simulate import Replayed, replay
from tracks_dagster.wings.lab.simulation.finishing import (
    WITHIN,
    FinishChance,
    finish_chances,
    finish_json,
)
from tracks_dagster.wings.lab.simulation.histories import (
    LLAMA3_MEAN_TIME_S,
    LLAMA3_PERSON_AFTER_S,
    LLAMA3_STEP_S,
    SPOT_STEP_S,
    llama3,
    read_traces,
    ring,
    spot,
    zones,
)
from tracks_dagster.wings.lab.simulation.play import Scenario
from tracks_dagster.wings.lab.simulation.world import Costs
from tracks_dagster.wiring import utc_now

NODES_MAX, DEVICES_PER_NODE_MAX = 10_000, 64
SUBMISSIONS_MAX = 1_000_000
TRACE_BYTES_MAX = 64 * 1024 * 1024
SPOT_SAVE_S, SPOT_RESTART_S, SPOT_PERSON_AFTER_S = 2.0, 60.0, 3600.0
LLAMA3_SAVE_S, LLAMA3_RESTART_S = 30.0, 300.0
REASONS_NAMED = 3  # of what was wasted, the most costly
MEANINGS = (
    "ETTR: the share of all time spent on steps that the run rests on in the end",
    "wasted: devices held for steps that do not count and for restarts, by what they are owed to",
)
MEANING_OF_BEST = (
    "of the best: against one who knows every interruption, saves right before it and never waits; "
    "the median of the traces, and the worst"
)


@click.command("simulate")
@click.option(
    "--trace",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Traces of spot capacity, JSON.",
)
@click.option(
    "--llama3", "is_llama3", is_flag=True, help="Play 54 days of Llama 3 405B's interruptions."
)
@click.option(
    "--schedule",
    metavar="FILE|NAME",
    help="Play a queue instead: a CSV file, eight-nodes, generated, pai, acme or ledger.",
)
@click.option(
    "--last",
    default="7d",
    show_default=True,
    help=f"How far to look back in the ledger: {DURATION_WORDS}.",
)
@click.option("--policy", type=click.Path(path_type=Path), metavar="FILE", help="Try this policy.")
@click.option("--save", help="How long a save blocks [2s; with --llama3 30s].")
@click.option("--restart", help="From a decided retry to its first step [60s; with --llama3 5min].")
@click.option(
    "--grace",
    help="With --trace: notice before a preemption [0s]. With --schedule: what one that makes room has "
    "for its save [as long as it takes].",
)
@click.option(
    "--nodes",
    type=click.IntRange(min=1, max=NODES_MAX),
    help="With --trace: how many instances a gang needs. With --schedule: how many there are [8].",
)
@click.option(
    "--devices-per-node",
    type=click.IntRange(min=1, max=DEVICES_PER_NODE_MAX),
    help="With --schedule [8].",
)
@click.option(
    "--submissions",
    type=click.IntRange(min=1, max=SUBMISSIONS_MAX),
    help="With --schedule generated, pai or acme: how many are drawn [2000].",
)
@click.option(
    "--picture",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="With --schedule: write a picture, .svg, or a page with it, .html.",
)
@click.option(
    "--pools",
    "as_pools",
    is_flag=True,
    help="With --trace: each trace is a pool, and a run may change it.",
)
@click.option("--person-after", help="How soon a person answers a refusal, or none [1h; 15min].")
@click.option("--every", multiple=True, help="A fixed checkpoint interval to compare; repeatable.")
@click.option(
    "--seed", default=0, show_default=True, help="Of --llama3's times, and of what is drawn."
)
@as_json
def simulate_command(policy: Path | None, as_json: bool, **options: Any) -> None:
    """Play the retry policy and checkpoint interval over a history, and compare others.

    The history is one of three: the ledger's own attempts of the last days, a file of traces of spot
    capacity, or the interruptions of the Llama 3 405B training. With --schedule a queue is played over
    devices instead, under several policies of scheduling: a file, a made workload, or the ledger's own
    submissions. Nothing is written but the picture.
    """
    given, settings = Options(**options), Settings.from_environment()
    chosen = load_policy(settings) if policy is None else read_policy_file(policy)
    _check_together(given)
    if given.schedule is not None:
        _play_queue(given, given.schedule, chosen, settings, as_json=as_json)
    elif given.is_made_up:
        _play_made_up(given, chosen, as_json=as_json)
    else:
        _play_ledger(given, chosen, settings, as_json=as_json)


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """The options of the command, as they were given; None, or nothing, where they were not."""

    trace: Path | None
    is_llama3: bool
    schedule: str | None
    last: str
    save: str | None
    restart: str | None
    grace: str | None
    nodes: int | None
    devices_per_node: int | None
    submissions: int | None
    picture: Path | None
    as_pools: bool
    person_after: str | None
    every: tuple[str, ...]
    seed: int

    @property
    def is_made_up(self) -> bool:
        """Whether the history is none of this home's."""
        return self.trace is not None or self.is_llama3

    @property
    def every_s(self) -> list[float]:
        """The fixed intervals between checkpoints to compare."""
        return [_positive("--every", text) for text in self.every] or list(EVERY_S)


def _check_together(given: Options) -> None:
    """Raise InvalidInput for options that belong to different kinds of play."""
    if given.schedule is not None:
        if given.is_made_up or given.every or given.person_after is not None:
            raise InvalidInput(
                "--schedule plays a queue; --trace, --llama3, --every and --person-after are for the "
                "history of one run. Leave them out."
            )
        return
    if (given.devices_per_node, given.submissions, given.picture) != (None, None, None):
        raise InvalidInput(
            "--devices-per-node, --submissions and --picture are for a queue: add --schedule."
        )
    of_a_world = (given.save, given.restart, given.grace, given.nodes, given.person_after)
    if not given.is_made_up and any(value is not None for value in of_a_world):
        raise InvalidInput(
            "--save, --restart, --grace, --nodes and --person-after describe a world that is made "
            "up; the ledger's history has its own. Give them with --trace FILE or --llama3."
        )
    if given.as_pools and given.trace is None:
        raise InvalidInput(
            "--pools takes each trace for a pool: give --trace FILE with two or more."
        )
    if given.trace is not None and given.is_llama3:
        raise InvalidInput("--trace and --llama3 are two histories; give one of them.")
    if given.is_llama3 and (given.grace is not None or given.nodes is not None):
        raise InvalidInput("--grace and --nodes are for --trace: Llama 3's gang has one size.")


def _play_queue(
    given: Options, schedule: str, policy: RetryPolicy, settings: Settings, *, as_json: bool
) -> None:
    if given.picture is not None:
        check_picture(given.picture)
    queue = Given(
        schedule=schedule,
        nodes=given.nodes,
        devices_per_node=given.devices_per_node,
        submissions=given.submissions,
        seed=given.seed,
        last_s=_positive("--last", given.last),
        save_s=None if given.save is None else _seconds("--save", given.save, 0.0),
        restart_s=None if given.restart is None else _seconds("--restart", given.restart, 0.0),
        grace_s=None if given.grace is None else _seconds("--grace", given.grace, 0.0),
        picture=given.picture,
    )
    ledger = open_ledger_to_read(settings) if schedule == LEDGER else None
    simulate_schedule(queue, policy.scheduling, ledger, as_json=as_json)


def _play_ledger(given: Options, policy: RetryPolicy, settings: Settings, *, as_json: bool) -> None:
    since = utc_now() - timedelta(seconds=_positive("--last", given.last))
    found = replay(open_ledger_to_read(settings), policy, since=since, every_s=given.every_s)
    _print_replay(found, policy, since=format_time(since), as_json=as_json)


def _play_made_up(given: Options, policy: RetryPolicy, *, as_json: bool) -> None:
    is_llama3 = given.is_llama3
    person_s = LLAMA3_PERSON_AFTER_S if is_llama3 else SPOT_PERSON_AFTER_S
    restart_s = LLAMA3_RESTART_S if is_llama3 else SPOT_RESTART_S
    world: dict[str, Json] = {
        "save_s": _seconds("--save", given.save, LLAMA3_SAVE_S if is_llama3 else SPOT_SAVE_S),
        "restart_s": _seconds("--restart", given.restart, restart_s),
        "person_after_s": _seconds(
            "--person-after", given.person_after, person_s, read=or_none(duration_s)
        ),
        "step_s": LLAMA3_STEP_S if is_llama3 else SPOT_STEP_S,
    }
    costs = Costs(step_s=world["step_s"], blocking_s=world["save_s"], restart_s=world["restart_s"])
    if given.trace is None:
        world |= {"seed": given.seed}
        scenarios = [llama3(costs, seed=given.seed, person_after_s=world["person_after_s"])]
    else:
        world |= {"grace_s": _seconds("--grace", given.grace, 0.0), "nodes": given.nodes}
        scenarios = _spots(given.trace, costs, world)
    if given.as_pools:
        names = [each.name for each in scenarios]
        _check_pools(policy, names)
        found = pool_choices(policy, blocking_s=costs.blocking_s, pools=ring(names))
        rows = compare(zones(scenarios), list(found), has_best=False)
        _print_made_up(rows, [], policy, world, is_llama3=False, as_json=as_json)
        return
    chosen = list(choices(policy, blocking_s=costs.blocking_s, every_s=given.every_s))
    rows = compare(scenarios, chosen, has_best=True)
    finishing = finish_chances(scenarios, chosen[0])
    _print_made_up(rows, finishing, policy, world, is_llama3=is_llama3, as_json=as_json)


def _check_pools(policy: RetryPolicy, names: Sequence[str]) -> None:
    """Raise InvalidInput for fewer than two pools, and for a policy's pool that is not a trace."""
    if len(names) < 2:
        raise InvalidInput(
            f"--pools needs two traces or more in the file; it has {', '.join(names)}."
        )
    missing = {*policy.other_pools, *policy.other_pools.values()} - set(names)
    if missing:
        raise InvalidInput(
            f"The policy's other_pools name {', '.join(sorted(missing))}, of which there is no trace; "
            f"there are: {', '.join(names)}."
        )


def _spots(path: Path, costs: Costs, given: dict[str, Json]) -> list[Scenario]:
    traces = read_traces(_read_json(path), source=str(path))
    return [
        spot(
            name,
            intervals,
            costs,
            nodes=given["nodes"],
            grace_s=given["grace_s"],
            person_after_s=given["person_after_s"],
        )
        for name, intervals in traces.items()
    ]


def _read_json(path: Path) -> Json:
    """Return what a file of a person's holds; raises InvalidInput."""
    try:
        with path.open("rb") as file:
            data = file.read(TRACE_BYTES_MAX + 1)
    except OSError as error:
        raise InvalidInput(f"{path} cannot be read ({error.strerror}).") from error
    if len(data) > TRACE_BYTES_MAX:
        raise InvalidInput(f"{path} has more than {TRACE_BYTES_MAX // 2**20} MiB; split it.")
    try:
        return parse_json(data, bytes_max=TRACE_BYTES_MAX)
    except UnicodeDecodeError as error:
        raise InvalidInput(f"{path} is not UTF-8: byte {error.start} is not text.") from error
    except ValueError as error:
        raise InvalidInput(
            f"{path} is not JSON ({error}). A trace file is one object, for example "
            '{"zone-a": {"intervals": [[1, 3600], [0, 300], [1, 7200]]}}.'
        ) from error


def _print_replay(found: Replayed, policy: RetryPolicy, *, since: str, as_json: bool) -> None:
    rows = [row_json(row) for row in found.rows]
    for row, saving in zip(rows[1:], found.savings, strict=True):
        row["saved_against_as_it_was"] = {
            "wasted_device_hours": saving.wasted_less_h,
            "kept_device_hours_forgone": saving.kept_less_h,
            "attempts": saving.attempts_less,
        }
    if as_json:
        print_json(
            {
                "source": "ledger",
                "since": since,
                "runs": found.run_count,
                "policy_version": policy.version,
                "rows": rows,
                "dead_retries": {"attempts": found.dead_count, "device_hours": found.dead},
                "p_finish": finish_json(found.finishing),
                "assumptions": list(found.assumptions),
            }
        )
        return
    click.echo(f"{found.run_count} runs with attempts that ended since {since}")
    _print_table(found.rows)
    click.echo()
    for line in (*_meanings(found.rows), *_savings(found)):
        click.echo(line)
    _print_finishing(found.finishing)
    for line in found.assumptions:
        click.echo(f"assumed: {line}")


def _savings(found: Replayed) -> Iterator[str]:
    for saving in found.savings:
        yield (
            f"{saving.policy}, saves {saving.cadence}: {_less(saving.wasted_less_h)} wasted, "
            f"{_less(saving.kept_less_h)} of kept work, {saving.attempts_less:+d} attempts spared"
        )
    hours = ", ".join(f"{reason} {hours:.2f} h" for reason, hours in found.dead.items())
    yield (
        f"{found.dead_count} attempts met the failure of the attempt before them once more and kept "
        f"nothing{f': {hours}' if hours else ''}"
    )


def _less(hours: float) -> str:
    return f"{abs(hours):.2f} device-hours {'less' if hours >= 0 else 'more'}"


def _print_made_up(
    rows: Sequence[Row],
    finishing: Sequence[FinishChance],
    policy: RetryPolicy,
    given: dict[str, Json],
    *,
    is_llama3: bool,
    as_json: bool,
) -> None:
    closed = None
    if is_llama3:
        closed = best_ettr(
            blocking_s=given["save_s"],
            restart_s=given["restart_s"],
            mean_time_s=LLAMA3_MEAN_TIME_S,
        )
    if as_json:
        source = "llama3" if is_llama3 else "traces"
        head = {"source": source, "policy_version": policy.version, "parameters": given}
        best = {"closed_form_best_ettr": closed} if closed is not None else {}
        rest = {"rows": [row_json(row) for row in rows], "p_finish": finish_json(finishing)}
        print_json({**head, **best, **rest})
        return
    click.echo(", ".join(f"{name} {value}" for name, value in given.items() if value is not None))
    _print_table(rows)
    click.echo()
    for line in _meanings(rows):
        click.echo(line)
    if closed is not None:
        click.echo(f"closed form, saving every √(2·δ·M), nobody ever waits: ETTR {closed:.4f}")
    _print_finishing(finishing)


def _meanings(rows: Sequence[Row]) -> Iterator[str]:
    """Yield what the columns say, and for what a person had to come."""
    yield from MEANINGS
    if any(row.best_shares for row in rows):
        yield MEANING_OF_BEST
    if any(row.outcome.kept_device_s <= 0 for row in rows):
        yield "paid for each kept device-hour: not known, as one of them kept nothing"
    else:
        paid = (f"{r.policy} {r.outcome.device_s / r.outcome.kept_device_s:.3f}" for r in rows[:3])
        yield f"paid for each kept device-hour: {', '.join(paid)}"
    refused = next(row.outcome.refused for row in rows if row.policy.startswith(OURS))
    if not refused:
        yield "ours refused nothing"
        return
    counted = Counter(refused).most_common()
    named = ", ".join(f"{words} limit, {count}×" for words, count in counted)
    yield f"ours refused {len(refused)} times: {named}"


def _print_finishing(chances: Sequence[FinishChance]) -> None:
    """Print the chance to finish in time, by how long a run works; nothing where nothing is known."""
    if not chances:
        return
    click.echo(f"\np(finish): the share of runs that end within {WITHIN:g} times their work")
    columns = ("with checkpoints", "without", "starts")
    cells = (
        (
            duration(each.work_s),
            f"{each.with_checkpoints:.2f}",
            f"{each.without:.2f}",
            str(each.starts),
        )
        for each in chances
    )
    print_table(("work", *columns), cells, right=columns)
    click.echo("with: ours, saving every √(2·δ·M); without: at once from step 0, again and again")


def _print_table(rows: Sequence[Row]) -> None:
    has_best = any(row.best_shares for row in rows)
    best = ("of the best", "worst") if has_best else ()
    numbers = ("ETTR", *best, "attempts", "refused", "wasted device-h")
    titles = ("policy", "saves every", *numbers, "most of it")
    cells = (_cells(row, has_best=has_best) for row in rows)
    print_table(titles, cells, right=numbers)


def _cells(row: Row, *, has_best: bool) -> tuple[str, ...]:
    shares = (_share(row.best_share_median), _share(row.best_share_worst)) if has_best else ()
    return (
        row.policy,
        row.cadence,
        f"{row.outcome.ettr:.4f}",
        *shares,
        str(row.outcome.attempts),
        str(len(row.outcome.refused)),
        f"{row.outcome.wasted_device_s / HOUR_S:.2f}",
        _most(row),
    )


def _most(row: Row) -> str:
    costly = sorted(row.outcome.wasted.items(), key=lambda item: -item[1])[:REASONS_NAMED]
    return ", ".join(
        f"{reason} {seconds / HOUR_S:.2f}" for reason, seconds in costly if seconds > 0
    )


def _share(share: float | None) -> str:
    return "–" if share is None else f"{share:.3f}"


def _positive(option: str, text: str) -> float:
    found = _seconds(option, text, 0.0)
    if found <= 0:
        raise InvalidInput(f"{option} {text!r} is not a time at all; write for example 10min.")
    return float(found)


def _seconds(
    option: str,
    text: str | None,
    default: float,
    *,
    read: Callable[[object], float | None] = duration_s,
) -> Json:
    """Return the seconds of an option, its default where it was not given."""
    if text is None:
        return default
    try:
        return read(text)
    except ValueError as error:
        raise InvalidInput(f"{option}: {error}") from error
