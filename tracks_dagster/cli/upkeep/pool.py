"""`tracks pool`: the nodes of compute pools, their quarantines, and who has this machine's devices."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial

import click

from tracks_dagster.attempts.effects.sharing import describe_running
from tracks_dagster.attempts.findings import DrainedNode
from tracks_dagster.cli import BAD_NEWS
from tracks_dagster.cli.common import (
    WholeGroup,
    as_json,
    deciding_options,
    open_app,
    print_answer,
    print_json,
    print_recorded,
    print_table,
)
from tracks_dagster.reading import open_ledger_to_read, open_tracks_to_read
from tracks_dagster.retry.effects.pool_nodes import (
    PoolLine,
    check_pool,
    pool_names,
    quarantine_device,
    quarantine_node,
    release_device,
    release_node,
    unstruck,
    view_pools,
)
from tracks_dagster.scheduling.devices_given import CPU
from tracks_dagster.scheduling.effects.leases import DeviceLine, DevicePool
from tracks_dagster.scheduling.effects.recurrence import PastTimes
from tracks_dagster.settings import Settings, load_policy, places_set_up
from tracks_dagster.track.body_json import to_json
from tracks_dagster.track.errors import GangError, InvalidInput, LedgerError, SettingsError
from tracks_dagster.track.text import units
from tracks_dagster.wing import launchers, load
from tracks_dagster.wiring import App, open_devices

SHORT_CHARACTERS = 16  # of a device's name in a table: GPU- and twelve more
_TITLES = ("pool", "node", "strikes", "worked h", "per 100 h", "quarantined until", "why")
_NUMBERS = frozenset({"strikes", "worked h", "per 100 h"})


class ShownByDefault(WholeGroup):
    """A group in which what is not a subcommand is an argument of `show`."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Put `show` before the arguments that no subcommand begins."""
        if not args or args[0] not in {*self.commands, *ctx.help_option_names}:
            args = ["show", *args]
        return super().parse_args(ctx, args)


@click.group("pool", cls=ShownByDefault)
def pool_command() -> None:
    """Show the nodes of compute pools (`tracks pool [NAME]`), quarantine and release them."""


@pool_command.command("show")
@click.argument("name", required=False)
@as_json
@click.pass_context
def show(ctx: click.Context, name: str | None, as_json: bool) -> None:
    """Show the nodes of pool NAME, or of all: strikes, time worked, rate, quarantine and why.

    Nodes that Slurm itself drained are listed under `slurm`, with its reason and who gave it.
    """
    settings = Settings.from_environment()
    tracks, ledger = open_tracks_to_read(settings), open_ledger_to_read(settings)
    rule = load_policy(settings).nodes
    names = [check_pool(tracks, ledger, name)] if name is not None else pool_names(ledger)
    pools, problems = view_pools(tracks, ledger, rule, names)
    for place in places_set_up(settings):
        if name is None or name.startswith(f"{place}/"):
            try:
                pools += drained_of(settings, place)
            except (GangError, SettingsError) as error:
                problems.append(f"{place}: {error}")
    if as_json:
        print_json([to_json(pool) for pool in pools])
    elif any(pool.nodes for pool in pools):
        print_table(_TITLES, _rows(pools), right=_NUMBERS)
    elif not problems:
        click.echo("No attempt has ended on a node of late, and no record names one.")
    for problem in problems:
        click.echo(problem, err=True)
    ctx.exit(BAD_NEWS if problems else 0)


def drained_of(settings: Settings, place: str) -> list[PoolLine]:
    """Return the nodes that a place itself keeps jobs off, under its name; raises as the place does."""
    package, launcher = launchers()[place]
    if not launcher.drained:
        return []
    drained: Sequence[DrainedNode] = load(package, launcher.drained).drained_nodes(settings)
    nodes = (
        replace(unstruck(each.node), note=f"{place} drained it, by {each.by}: {each.why}")
        for each in drained
    )
    found = PoolLine(pool=place, nodes=tuple(nodes))
    return [found] if found.nodes else []


@pool_command.command("devices")
@as_json
@click.pass_context
def devices(ctx: click.Context, as_json: bool) -> None:
    """Show the devices of this machine: who has each, since when, and why not to be had."""
    settings = Settings.from_environment()
    pool = open_devices(settings, open_tracks_to_read(settings), to_read=True)
    try:
        past = PastTimes(open_ledger_to_read(settings))
    except LedgerError:  # nothing was projected yet
        past = PastTimes(None)
    lines, problems = pool.view(partial(describe_running, pool, past, pool.tracks.now()))
    if as_json:
        print_json({"devices": [to_json(line) for line in lines], "problems": problems})
    else:
        _print_devices(lines)
        for problem in problems:
            click.echo(problem, err=True)
    ctx.exit(BAD_NEWS if problems else 0)


@pool_command.command("quarantine")
@click.argument("pool")
@click.argument("node", metavar="NODE|DEVICE")
@click.option("--for", "length", default="24h", show_default=True, help="How long: 90min, 24h, 7d.")
@deciding_options
def quarantine(pool: str, node: str, length: str, why: str, by: str, as_json: bool) -> None:
    """Open no attempt on NODE of POOL for a while; running attempts continue.

    `tracks drain NODE` also moves those away. Where POOL is this machine's, local/HOST, a DEVICE of it
    is given to nobody: its UUID as `tracks pool devices` shows it, or the start of that.
    """
    for_s = parse_length(length)
    app = open_app()
    if (own := _own_pool(app, pool)) is not None:
        device = own.name_of(node)
        record = quarantine_device(own.tracks, pool, device, for_s=for_s, by=by, why=why)
        until = record.body["until_at"]
        print_answer(
            f"Device {device} is given to nobody until {until} (record {record.seq}); what runs on it "
            "continues.",
            {"pool": pool, "device": device, "until_at": until, "seq": record.seq},
            as_json=as_json,
        )
        return
    check_pool(app.tracks, app.ledger, pool)
    record = quarantine_node(app.tracks, pool, node, for_s=for_s, by=by, why=why)
    until = record.body["until_at"]
    print_answer(
        f"Node {node} of pool {pool} is in quarantine until {until} (record {record.seq}); no attempt "
        "is opened onto it, those that run there continue.",
        {"pool": pool, "node": node, "until_at": until, "seq": record.seq},
        as_json=as_json,
    )


@pool_command.command("release")
@click.argument("pool")
@click.argument("node", metavar="NODE|DEVICE")
@deciding_options
def release(pool: str, node: str, why: str, by: str, as_json: bool) -> None:
    """Allow attempts on NODE of POOL again, and forgive its strikes; or on a DEVICE of this machine."""
    app = open_app()
    if (own := _own_pool(app, pool)) is not None:
        device = own.name_of(node)
        record = release_device(own.tracks, pool, device, by=by, why=why)
        facts = {"pool": pool, "device": device}
        print_recorded(f"Device {device} may be given out", facts, record, as_json=as_json)
        return
    check_pool(app.tracks, app.ledger, pool)
    record = release_node(app.tracks, pool, node, by=by, why=why)
    facts = {"pool": pool, "node": node}
    print_recorded(f"Node {node} of pool {pool} may be used", facts, record, as_json=as_json)


@pool_command.command("free")
@click.argument("pool")
@click.argument("key", metavar="RUN/ATTEMPT")
@deciding_options
def free(pool: str, key: str, why: str, by: str, as_json: bool) -> None:
    """Give back the devices of RUN/ATTEMPT, a run of a home that is gone or that nobody here can read.

    Only where nothing of it runs any more, which is your word: --why says how you know. Refused where
    its track can be read, or where it is seen to live, or a process is on its devices.
    """
    app = open_app()
    if (own := _own_pool(app, pool)) is None:
        here = "none" if app.devices is None else app.devices.here.pool
        raise InvalidInput(f"{pool} is not the pool of this machine's devices, which is {here}.")
    record = own.release(key, by=by, why=why)
    facts = {"pool": pool, "key": key}
    print_recorded(f"The devices of {key} may be given out", facts, record, as_json=as_json)


def _own_pool(app: App, pool: str) -> DevicePool | None:
    """Return the devices of this machine where `pool` is theirs."""
    return app.devices if app.devices is not None and app.devices.here.pool == pool else None


def _print_devices(lines: Sequence[DeviceLine]) -> None:
    """Print a table without the columns that say nothing, and free slots as a number."""
    slots = [line for line in lines if line.device.startswith(f"{CPU}:")]
    free = [line for line in slots if not (line.held_by or line.why)]
    shown = [line for line in lines if line not in free]
    columns = {
        "device": [_short(line.device) for line in shown],
        "model": [line.model for line in shown],
        "memory": [_size(line.memory_bytes) for line in shown],
        "held by": [", ".join(line.held_by) for line in shown],
        "since": [(line.since or "")[5:16].replace("T", " ") for line in shown],
        "free in": [
            "" if line.free_in_s is None else units.about(line.free_in_s) for line in shown
        ],
        "strikes": [str(line.strikes or "") for line in shown],
        "why": [line.why for line in shown],
    }
    filled = {title: cells for title, cells in columns.items() if any(cells)}
    if shown:
        rows = zip(*([cell or "–" for cell in cells] for cells in filled.values()), strict=True)
        print_table(filled, rows, right={"memory", "strikes"})
    if free:
        click.echo(f"{len(free)} of {len(slots)} CPU slots are free.")


def _short(device: str) -> str:
    """Return the start of a UUID, enough to name one device of a machine; commands accept it."""
    return device if len(device) <= SHORT_CHARACTERS else f"{device[:SHORT_CHARACTERS]}…"


def _size(size_bytes: int | None) -> str:
    return "" if size_bytes is None else f"{size_bytes / 2**30:.0f} GiB"


def parse_length(text: str) -> float:
    """Return the seconds of `24h`; raises InvalidInput."""
    try:
        return units.duration_s(text)
    except ValueError as error:
        raise InvalidInput(f"--for: {error}") from error


def _rows(pools: list[PoolLine]) -> Iterator[tuple[str, ...]]:
    for pool in pools:
        for node in pool.nodes:
            yield (
                pool.pool,
                node.node,
                str(node.strikes),
                f"{node.exposure_s / 3600:.1f}",
                "–" if node.rate is None else f"{100 * node.rate:.2f}",
                (node.quarantined_until or "–")[:16],
                node.why if node.why is not None else node.note or ", ".join(node.reasons),
            )
