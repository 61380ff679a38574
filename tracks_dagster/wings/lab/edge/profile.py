"""`tracks profile`: what a run's steps take, what all of it will, and what more devices would bring."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import click

from tracks_dagster.attempts.pace import format_span
from tracks_dagster.attempts.sizing import format_bytes
from tracks_dagster.cli.common import as_json, print_json, print_table, text_width
from tracks_dagster.ledger.effects.tracks import Tracks
from tracks_dagster.ledger.prices import Prices
from tracks_dagster.reading import open_ledger_to_read, open_tracks_to_read
from tracks_dagster.settings import Settings, load_prices
from tracks_dagster.track.body_json import to_json
from tracks_dagster.track.errors import InvalidInput, LedgerError
from tracks_dagster.track.records import Json
from tracks_dagster.track.roles import (
    ACCUMULATION,
    LR,
    MICRO_BATCH,
    SEED,
    STEPS,
    roles_of,
    value_of,
)
from tracks_dagster.track.states.run_state import RunState
from tracks_dagster.track.text.units import about, cost_text
from tracks_dagster.wings.lab.effects.profile import money_of, read_interruptions, read_profile
from tracks_dagster.wings.lab.profile import (
    ASSUMED_S,
    Estimate,
    Interruptions,
    Measured,
    Profile,
    ScalingAdvice,
    advise_scaling,
    estimate,
    on_spot,
)

FREE_OF_SIZE = (STEPS, SEED, LR, MICRO_BATCH, ACCUMULATION)  # what runs of one config may differ in
RUNS_MAX = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Profiled:
    """One run: its profile, what all of its steps take, and how its pool interrupts it."""

    state: RunState
    profile: Profile
    whole: Estimate | None
    met: Interruptions | None
    how: str


@click.command("profile")
@click.argument("run_ids", metavar="RUN...", nargs=-1, required=True)
@as_json
def profile_command(run_ids: tuple[str, ...], as_json: bool) -> None:
    """Show what the steps of RUN take, and what the whole run will.

    From the journals: a start, steps, throughput, waits, memory; by that the hours, device hours and
    money of all its steps. Several RUNs of one config with different numbers of ranks: also what each
    added device brought, and where to stop.
    """
    if len(run_ids) > RUNS_MAX:
        raise InvalidInput(f"{len(run_ids)} runs are too many; name at most {RUNS_MAX}.")
    given = Settings.from_environment()
    tracks, prices = open_tracks_to_read(given), load_prices(given)
    found = [_profiled(given, tracks, prices, run_id) for run_id in dict.fromkeys(run_ids)]
    _check_one_config([each.state for each in found])
    scaling = _scaling(found)
    if as_json:
        runs = [_json_of(each) for each in found]
        print_json({"runs": runs, "scaling": None if scaling is None else _scaling_json(scaling)})
        return
    for number, each in enumerate(found):
        if number:
            click.echo()
        for line in _lines(each):
            click.echo(line)
    if scaling is not None:
        click.echo()
        _print_scaling(scaling)


def _profiled(given: Settings, tracks: Tracks, prices: Prices | None, run_id: str) -> Profiled:
    state, profile = tracks.run(run_id), read_profile(tracks, run_id)
    attempt = state.attempts[profile.attempt_id - 1]
    steps = value_of(attempt.opened.config, state.declared.roles, STEPS)
    money = money_of(prices, profile, attempt.opened.compute)
    try:
        met = read_interruptions(tracks, open_ledger_to_read(given), profile)
    except LedgerError:  # nothing was projected yet
        met = None
    return Profiled(
        state=state,
        profile=profile,
        whole=estimate(profile, steps, money) if type(steps) is int else None,
        met=met[0] if met is not None else None,
        how=met[1] if met is not None else "",
    )


def _check_one_config(states: Sequence[RunState]) -> None:
    """Raise InvalidInput where runs differ in more than their size."""
    first = states[0]
    for other in states[1:]:
        pairs = [(_config_of(state), state.declared.model_family) for state in (first, other)]
        (left, project), (right, other_project) = pairs
        differing = sorted(k for k in {*left, *right} if left.get(k) != right.get(k))
        if project != other_project:
            differing = ["project", *differing]
        if differing:
            raise InvalidInput(
                f"{first.run_id} and {other.run_id} cannot be compared by size: they also differ in "
                f"{', '.join(differing)}. Name runs of one project and config, with other ranks."
            )


def _config_of(state: RunState) -> dict[str, Json]:
    config, roles = state.declared.config, state.declared.roles
    free = {roles_of(roles, config).get(role) for role in FREE_OF_SIZE}
    return {key: value for key, value in config.items() if key not in free}


def _scaling(found: Sequence[Profiled]) -> ScalingAdvice | None:
    """Return the advice over runs of several sizes; None for one size."""
    profiles = [each.profile for each in found]
    if len({profile.ranks for profile in profiles}) < 2:
        return None
    return advise_scaling(
        [
            Measured(
                run_id=each.run_id,
                devices=each.ranks,
                per_s=each.steps_per_s if each.samples_per_s is None else each.samples_per_s,
            )
            for each in profiles
        ]
    )


def _lines(each: Profiled) -> Iterator[str]:
    profile = each.profile
    yield (
        f"{profile.run_id}/a{profile.attempt_id:02d} on {profile.ranks} × {profile.device}: "
        f"{profile.steps} steps measured"
    )
    yield ""
    for label, words in _rows(each):
        yield from textwrap.wrap(
            f"  {label:<12}{words}", text_width(), subsequent_indent=" " * 14
        ) or [""]
    if each.whole is not None:
        yield ""
        for words in _whole(each.whole, each.met, each.how):
            yield textwrap.fill(words, text_width())


def _rows(each: Profiled) -> Iterator[tuple[str, str]]:
    profile = each.profile
    times = (("median", profile.p50_s), ("90 %", profile.p90_s), ("99 %", profile.p99_s))
    yield "a step", ", ".join(f"{name} {_seconds(value)}" for name, value in times)
    per_s = "" if profile.samples_per_s is None else f", {profile.samples_per_s:.4g} samples/s"
    yield "throughput", f"{profile.steps_per_s:.3g} steps/s{per_s}"
    start = "not measured" if profile.start_s is None else _seconds(profile.start_s)
    yield "a start", f"{start}, from a supervisor's claim to the restore (of {profile.starts})"
    yield "time went", _shares(profile)
    if profile.stalls:
        stalled = _seconds(profile.stalled_s)
        yield "stalls", f"{profile.stalls} steps of over 3 medians took {stalled} more"
    else:
        yield "stalls", "no step took over 3 medians"
    yield "memory", _memory(profile)


def _shares(profile: Profile) -> str:
    shares = profile.shares
    if shares is None:
        return "not measured: the journal is of an older version"
    agreeing = "not measured for one rank"
    if shares.exchange is not None:
        agreeing = f"{shares.exchange:.1%} until all ranks had agreed"
    elif profile.ranks > 1:
        agreeing = "the ranks' exchange was not measured"
    return (
        f"{shares.computing:.1%} computing ({agreeing}), {shares.data:.1%} waiting for data, "
        f"{shares.saving:.1%} saving, {shares.evaluating:.1%} evaluating, {shares.other:.1%} else"
    )


def _memory(profile: Profile) -> str:
    memory = profile.memory
    if memory is None:
        return "not known until the attempt has ended"
    if memory.device_bytes is not None and memory.reserved_bytes and memory.total_bytes:
        free = 1 - memory.reserved_bytes / memory.total_bytes
        return (
            f"{format_bytes(memory.device_bytes)} in use at most, "
            f"{format_bytes(memory.reserved_bytes)} held, of {format_bytes(memory.total_bytes)}: "
            f"{free:.0%} free"
        )
    if memory.host_bytes is None:
        return "not measured"
    return f"{format_bytes(memory.host_bytes)} of the machine's by one rank's process at most"


def _whole(whole: Estimate, met: Interruptions | None, how: str) -> Iterator[str]:
    hours = whole.device_hours
    money = ""
    if whole.cost is not None and whole.money is not None:
        half = (
            ""
            if whole.cost.high_s is None
            else f" ± {cost_text(whole.cost.high_s - whole.cost.seconds)}"
        )
        money = f", {cost_text(whole.cost.seconds)}{half} {whole.money.currency}"
    yield (
        f"All {whole.steps} steps from a start on: {format_span(whole.wall)} on {whole.devices}, "
        f"{hours.seconds:.3g} device hours{money}. Without interruptions."
    )
    if whole.cost is None:
        yield "In money: there is no price of this device (prices.yaml in TRACKS_HOME)."
    if met is None:
        return
    if not how:
        at = [(m, replace(met, mean_time_s=m).break_even) for m in ASSUMED_S]
        ratios = ", ".join(f"{ratio:.2f} every {about(m)}" for m, ratio in at)
        yield (
            "Its pool has interrupted nothing yet. Spot is cheaper while it costs less than this part "
            f"of the price on demand, by how often it is interrupted: {ratios}."
        )
        return
    choice = on_spot(whole, met)
    yield (
        f"With its pool's interruptions, one every {about(met.mean_time_s)} ({how}), it ends "
        f"{about(choice.delay_s)} later. Spot that is interrupted so is cheaper while it costs less "
        f"than {choice.break_even:.2f} of the price on demand."
    )
    if choice.cost is not None and choice.saved is not None and whole.money is not None:
        verb = "less" if choice.saved >= 0 else "more"
        yield (
            f"At the spot price, {whole.money.spot_per_device_hour:g} an hour: "
            f"{cost_text(choice.cost)} {whole.money.currency}, {cost_text(abs(choice.saved))} {verb} "
            "than on demand."
        )


def _print_scaling(advice: ScalingAdvice) -> None:
    rows = [
        (
            str(step.devices),
            step.run_id,
            f"{step.per_s:.4g}",
            f"{step.speedup:.2f}",
            "–" if step.marginal is None else f"{step.marginal:.2f}",
            f"{step.cost:.2f}",
        )
        for step in advice.steps
    ]
    titles = ("devices", "run", "per s", "speed-up", "each added", "cost")
    print_table(titles, rows, right={*titles} - {"run"})
    click.echo(textwrap.fill(advice.words, text_width()))


def _json_of(each: Profiled) -> dict[str, Json]:
    whole, met = each.whole, each.met
    is_known = whole is not None and met is not None and bool(each.how)
    choice = on_spot(whole, met) if is_known and whole and met else None
    return {
        **to_json(each.profile),
        "whole": None
        if whole is None
        else {
            **to_json(whole),
            "device_hours": to_json(whole.device_hours),
            "cost": None if whole.cost is None else to_json(whole.cost),
        },
        "interruptions": {**to_json(met), "waste": met.waste} if met and each.how else None,
        "spot": None if choice is None else to_json(choice),
    }


def _scaling_json(advice: ScalingAdvice) -> dict[str, Json]:
    return {**to_json(advice), "words": advice.words}


def _seconds(seconds: float) -> str:
    return about(seconds) if seconds >= 1 else f"{1000 * seconds:.3g} ms"
