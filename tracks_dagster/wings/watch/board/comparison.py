"""Runs side by side, and an experiment: a baseline and what each other run changed. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from urllib.parse import urlencode

from tracks_dagster.curves.curve import Point
from tracks_dagster.review.comparing import Score, own_values
from tracks_dagster.review.experiments import (
    Experiment,
    ExperimentRun,
    MeasuredBy,
    Settings,
    changes,
    differing,
    eval_title,
    measured_by,
    outside,
    result,
)
from tracks_dagster.track.records import Json, canonical_json
from tracks_dagster.track.states.accounting import kept_and_lost
from tracks_dagster.track.text.units import about
from tracks_dagster.wings.watch.board import formats
from tracks_dagster.wings.watch.board.catalogue import Catalogue
from tracks_dagster.wings.watch.board.colours import looks_of
from tracks_dagster.wings.watch.board.reading import RunReading
from tracks_dagster.wings.watch.board.run_page import SHORT, Choice, Link, Panel

RUNS_MAX = 50  # side by side
COLUMNS_MAX = 6  # runs that are columns of the table; more are its rows
TITLE_RUNS_MAX = 3  # by name
TRAINED_MAX = 12  # metrics of the training in the table; their curves have all
TRAINING = "training "  # before the name of one
ALIKE = (
    "config",
    "data",
    "code",
)  # settings in which runs that differ only in the seed are the same
CHANGES_MAX = 6  # of one run in an experiment's table
VALUE_CHARACTERS_MAX = 80


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparedRun:
    """One run. settings: by group ("config", "code" …), flat; outcome: facts of it, in words; numbers:
    those of them that were measured; seed_key: what of its config is the seed, None where nothing is;
    called: its name for people, "" for none."""

    run_id: str
    settings: Mapping[str, Settings]
    outcome: Settings
    numbers: Mapping[str, float] = field(default_factory=dict)
    seed_key: str | None = None
    called: str = ""
    has_code: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparedRow:
    """One line of the table: a value for each run."""

    name: str
    values: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparedGroup:
    """Lines of one kind; none where nothing differs."""

    title: str
    rows: tuple[ComparedRow, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ColouredRun:
    """A run and the classes of its line. seat: its number on the page; without: this page without it,
    "" where there is none; band: the number of the runs that differ from it only in the seed; called:
    its name for people, else its id; has_code: whether its code is stored."""

    run_id: str
    colour: str
    seat: int = 0
    without: str = ""
    band: int | None = None
    is_shown: bool = True
    called: str = ""
    has_code: bool = True

    @property
    def classes(self) -> str:
        """The classes of its lines: how they look, and whose they are."""
        return f"{self.colour} s{self.seat}"


@dataclass(frozen=True, slots=True, kw_only=True)
class DrawnMetric:
    """One panel. svg: "" where the script alone draws it; alone: its own page; star, hide: the address
    with it starred, or no more, and hidden."""

    name: str
    title: str
    unit: str
    missing: str
    is_starred: bool
    svg: str
    alone: str
    star: str
    hide: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DrawnGroup:
    """Panels under one heading. fold: the address with it folded, or unfolded."""

    title: str
    count: int
    is_folded: bool
    fold: str
    panels: tuple[DrawnMetric, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class CurvesView:
    """The curves of a comparison. given: every key and value of the address that the form does not
    have; data: where the script asks for numbers; names: changes with the metrics that there are;
    hidden: a way back for each metric; pages: links."""

    by: str
    axes: tuple[str, ...]
    scale: str
    smooth: int
    find: str
    is_clipped: bool
    is_banded: bool
    has_bands: bool
    given: tuple[tuple[str, str], ...]
    data: str
    names: str
    catalogue: Catalogue
    groups: tuple[DrawnGroup, ...]
    hidden: tuple[Link, ...]
    pages: tuple[Link, ...]
    zoom: Link | None
    runs: tuple[ColouredRun, ...]
    words: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigPicture:
    """Runs as lines over what differs in their configs. against: links to what the last axis may be;
    words: what is not drawn."""

    svg: str
    against: tuple[Link, ...]
    words: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparisonView:
    """The page /compare. same: a sentence on what does not differ, "" for nothing; is_long: whether the
    runs are the table's rows."""

    title: str
    summary: str
    same: str
    runs: tuple[ColouredRun, ...]
    groups: tuple[ComparedGroup, ...]
    is_long: bool
    picture: ConfigPicture | None = None
    curves: CurvesView | None = None
    banners: tuple[str, ...] = ()


def seed_bands(runs: Sequence[ComparedRun]) -> dict[str, int]:
    """Return of each run that another one differs from only in the seed, the number of that family."""
    families: dict[bytes, list[str]] = {}
    for run in runs:
        settings = {group: dict(run.settings.get(group, {})) for group in ALIKE}
        if run.seed_key is not None:
            settings["config"].pop(run.seed_key, None)
        families.setdefault(canonical_json(settings), []).append(run.run_id)
    several = [members for members in families.values() if len(members) > 1]
    return {run_id: number for number, members in enumerate(several) for run_id in members}


def coloured(
    runs: Sequence[ComparedRun], without: Mapping[str, str], off: Sequence[str]
) -> tuple[ColouredRun, ...]:
    """Return each run with how it looks. without: the page without it; off: runs that are hidden."""
    looks, bands = looks_of([run.run_id for run in runs]), seed_bands(runs)
    return tuple(
        ColouredRun(
            run_id=run.run_id,
            colour=looks[run.run_id],
            seat=seat,
            without=without.get(run.run_id, "") if len(runs) > 2 else "",
            band=bands.get(run.run_id),
            is_shown=run.run_id not in off,
            called=run.called or run.run_id,
            has_code=run.has_code,
        )
        for seat, run in enumerate(runs)
    )


def comparison_view(
    runs: Sequence[ComparedRun],
    *,
    shown: Sequence[ColouredRun],
    picture: ConfigPicture | None = None,
    curves: CurvesView | None = None,
    banners: Sequence[str] = (),
) -> ComparisonView:
    """Return the runs side by side: what came of them, then only what differs."""
    names = dict.fromkeys(name for run in runs for name in run.outcome)
    outcome = tuple(
        ComparedRow(name=name, values=tuple(_shown(run.outcome, name) for run in runs))
        for name in names
    )
    groups = dict.fromkeys(name for run in runs for name in run.settings)
    differences = {name: _differences(name, runs) for name in groups}
    same = [name for name, group in differences.items() if not group.rows]
    return ComparisonView(
        title=_title([run.called or run.run_id for run in runs]),
        summary=_summary(runs),
        same=f"The same in all of them: {', '.join(same)}." if same and len(runs) > 1 else "",
        runs=tuple(shown),
        groups=(
            ComparedGroup(title="What came of it", rows=outcome),
            *differences.values(),
        ),
        is_long=len(runs) > COLUMNS_MAX,
        picture=picture,
        curves=curves,
        banners=tuple(banners),
    )


def _title(names: Sequence[str]) -> str:
    if len(names) > TITLE_RUNS_MAX:
        return f"{len(names)} runs compared"
    return " against ".join(names) or "Compare runs"


def numbers_of(trained: Mapping[str, Point], scores: Sequence[Score]) -> dict[str, float]:
    """Return what was measured of a run, named as in its outcome."""
    evals = {eval_title(*name): value for name, (value, _) in own_values(scores).items()}
    newest = list(trained.items())[:TRAINED_MAX]
    return {**evals, **{f"{TRAINING}{name}": point.value for name, point in newest}}


def outcome_of(
    reading: RunReading, trained: Mapping[str, Point], scores: Sequence[Score]
) -> Settings:
    """Return what came of a run. trained: of each metric of the training the newest that was kept;
    scores: its evals. Each is named as what it is, with its step."""
    accounts = kept_and_lost(reading.state)
    ended = [each.ended.device_seconds for each in reading.state.attempts if each.ended]
    return {
        "state": reading.pill,
        "step": formats.of_steps(reading.step, reading.steps),
        **{
            eval_title(*name): formats.at_step(formats.number(value), step)
            for name, (value, step) in own_values(scores).items()
        },
        **{
            f"{TRAINING}{name}": formats.at_step(formats.number(point.value), point.step)
            for name, point in list(trained.items())[:TRAINED_MAX]
        },
        "pace": formats.pace(None if reading.pace is None else reading.pace.step_s),
        "attempts": str(len(reading.state.attempts)),
        "steps lost": formats.grouped(sum(each.lost for each in accounts)),
        "device time of ended attempts": about(sum(ended)) if ended else formats.UNKNOWN,
        "money so far": formats.money(reading.cost),
    }


def measured_of(scores: Sequence[Score]) -> Settings:
    """Return by which version, on which data and with which seeds each eval measured."""
    found: dict[str, list[str]] = {}
    for each in scores:
        data = f"data {each.snapshot_id[:SHORT]}, " if each.snapshot_id else ""
        words = f"version {each.suite_version}, {data}seed {each.seed}"
        found.setdefault(each.suite, []).append(words)
    return {suite: "; ".join(words) for suite, words in found.items()}


def _summary(runs: Sequence[ComparedRun]) -> str:
    if not runs:
        return "Mark runs of the fleet with `x`, then press `c`; or open /compare?run=A&run=B."
    if len(runs) == 1:
        return "One run only: name another one, /compare?run=A&run=B."
    return "Of their settings only what differs."


def _differences(group: str, runs: Sequence[ComparedRun]) -> ComparedGroup:
    given = [run.settings.get(group, {}) for run in runs]
    return ComparedGroup(
        title=group.capitalize(),
        rows=tuple(
            ComparedRow(name=name, values=tuple(_shown(each, name) for each in given))
            for name in differing(given)
        ),
    )


def _shown(settings: Settings, name: str) -> str:
    return short(settings[name]) if name in settings else formats.UNKNOWN


def short(value: Json) -> str:
    """Return a setting's value in a table's cell."""
    text = ", ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)
    if len(text) <= VALUE_CHARACTERS_MAX:
        return text
    return f"{text[: VALUE_CHARACTERS_MAX - 1]}…"


# --- an experiment --------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class ExperimentRow:
    """One line. verdict: good or bad against the baseline, "" where nobody knows; trained: the losses
    of its newest commit."""

    run_id: str
    about: str
    is_baseline: bool
    changes: tuple[str, ...]
    state: str
    steps: str
    value: str
    difference: str
    verdict: str
    trained: str
    device_time: str
    compare: str
    make_baseline: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ExperimentView:
    """The page /experiments/NAME. metric: what the evals are compared by."""

    family: str
    summary: str
    baseline: str
    why: str
    metric: str
    rows: tuple[ExperimentRow, ...]
    panels: tuple[Panel, ...] = ()
    runs: tuple[ColouredRun, ...] = ()
    choices: tuple[Choice, ...] = ()
    zoom: Link | None = None
    banners: tuple[str, ...] = ()


def experiment_view(family: str, found: Experiment) -> ExperimentView:
    """Return the page without its curves: the baseline first, then the others, newest first."""
    runs, baseline = found.runs, found.baseline
    others = [run for run in reversed(runs) if run.run_id != baseline.run_id]
    by = measured_by(runs, baseline)
    return ExperimentView(
        family=family,
        summary=found.words,
        baseline=baseline.run_id,
        why=found.why,
        metric="" if by is None else by.title,
        rows=tuple(
            _experiment_row(run, baseline, by, outside(run, family, runs))
            for run in (baseline, *others)
        ),
    )


def _experiment_row(
    run: ExperimentRun, baseline: ExperimentRun, by: MeasuredBy | None, outside: str
) -> ExperimentRow:
    found = result(run, baseline, by)
    value = None if found is None else formats.at_step(formats.number(found.value), found.step)
    source = f", a branch of {run.branched_from}" if run.branched_from else ""
    alias = f", {run.alias}" if run.alias else ""
    return ExperimentRow(
        run_id=run.run_id,
        about=f"{run.owner}{source}{alias}{f', {outside}' if outside else ''}",
        is_baseline=run.run_id == baseline.run_id,
        changes=tuple(_changes(run, baseline)),
        state=run.state,
        steps=formats.grouped(run.steps),
        value=value or formats.UNKNOWN,
        difference=formats.UNKNOWN if found is None else _against(found.difference),
        verdict="" if found is None else found.verdict,
        trained=_trained(run),
        device_time=about(run.device_s) if run.device_s else formats.UNKNOWN,
        compare="/compare?" + urlencode([("run", baseline.run_id), ("run", run.run_id)]),
        make_baseline=f"?{urlencode({'baseline': run.run_id})}",
    )


def _changes(run: ExperimentRun, baseline: ExperimentRun) -> Iterator[str]:
    found = changes(run, baseline)
    for each in found[:CHANGES_MAX]:
        yield f"{each.name} {_value(each.before)} → {_value(each.after)}"
    if len(found) > CHANGES_MAX:
        yield f"and {len(found) - CHANGES_MAX} more"


def _value(value: Json) -> str:
    return formats.UNKNOWN if value is None else short(value)


def _trained(run: ExperimentRun) -> str:
    """Return "loss 1.31, val_loss 1.4 at 300" of its newest commit."""
    losses = ", ".join(f"{name} {formats.number(value)}" for name, value in run.trained.items())
    return formats.at_step(losses, run.trained_step) if losses else formats.UNKNOWN


def _against(off: float | None) -> str:
    if not off:
        return formats.UNKNOWN if off is None else "the same"
    return f"{'+' if off > 0 else '−'}{formats.number(abs(off))}"
