"""Runs as lines over the keys of their configs and a number that came of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from tracks_dagster.review.experiments import Settings, differing
from tracks_dagster.track.text.units import counted
from tracks_dagster.wings.watch.board import formats
from tracks_dagster.wings.watch.board.comparison import (
    TRAINING,
    ColouredRun,
    ComparedRun,
    ConfigPicture,
)
from tracks_dagster.wings.watch.board.effects.parallel import (
    AXES_MAX,
    DRAWN_MAX,
    Line,
    axis_of,
    parallel,
    scale_of,
    seen_as,
    share_of,
)
from tracks_dagster.wings.watch.board.run_page import Link

PICTURED_MIN = 3  # runs; two are compared by words


def config_picture(
    runs: Sequence[ComparedRun],
    shown: Sequence[ColouredRun],
    asked: str,
    address: Callable[[str], str],
) -> ConfigPicture | None:
    """Return the runs over the keys of their configs that differ, and a number that came of them.

    asked: its name; else the first of the evals, then a loss of the training. address: of the page with
    another one. A seed is not an axis. None where nothing differs, or too few runs have a number.
    """
    names = [
        name
        for name in dict.fromkeys(name for run in runs for name in run.numbers)
        if sum(name in run.numbers for run in runs) >= PICTURED_MIN
    ]
    seeds = {run.seed_key for run in runs}
    configs = {run.run_id: run.settings.get("config", {}) for run in runs}
    differ = [name for name in differing(list(configs.values())) if name not in seeds]
    if not names or not differ:
        return None
    against = asked if asked in names else min(names, key=_is_trained_beside_loss)
    drawn = {run.run_id: run.numbers[against] for run in runs if against in run.numbers}
    finite = {run_id: value for run_id, value in drawn.items() if abs(value) <= DRAWN_MAX}
    keys = differ[:AXES_MAX]
    return ConfigPicture(
        svg=_over_keys(keys, configs, [run for run in shown if run.is_shown], against, finite),
        against=tuple(
            Link(label=name, address=address(name), is_chosen=name == against) for name in names
        ),
        words=tuple(_not_drawn(len(runs), drawn, finite, against, differ)),
    )


def _is_trained_beside_loss(name: str) -> tuple[bool, bool, bool]:
    """Order what was measured: evals, then a validation's loss, any loss, the rest."""
    is_loss = "loss" in name
    return name.startswith(TRAINING), not (is_loss and "val" in name), not is_loss


def _over_keys(
    keys: Sequence[str],
    configs: Mapping[str, Settings],
    shown: Sequence[ColouredRun],
    against: str,
    values: Mapping[str, float],
) -> str:
    runs = [run for run in shown if run.run_id in values]
    if not runs:
        return ""
    params = {
        key: seen_as(
            [configs[run.run_id][key] for run in runs if key in configs[run.run_id]] or [0]
        )
        for key in keys
    }
    scale = scale_of([values[run.run_id] for run in runs])
    axes = [
        axis_of(key, params[key], has_none=any(key not in configs[run.run_id] for run in runs))
        for key in keys
    ]
    lines = [
        Line(
            title=f"{run.called}: {against} {formats.number(values[run.run_id])}",
            address=f"/runs/{run.run_id}",
            css=run.classes,
            shares=(
                *(
                    share_of(params[key], config[key]) if key in config else None
                    for key, config in ((key, configs[run.run_id]) for key in keys)
                ),
                scale.share(values[run.run_id]),
            ),
        )
        for run in runs
    ]
    words = f"{counted(len(runs), 'run')} over {', '.join(keys)} and {against}"
    return parallel([*axes, scale.axis(against.removeprefix(TRAINING))], lines, name=words)


def _not_drawn(
    runs: int,
    drawn: Mapping[str, float],
    finite: Mapping[str, float],
    against: str,
    differ: Sequence[str],
) -> Iterator[str]:
    if len(differ) > AXES_MAX:
        yield f"Not drawn: {', '.join(differ[AXES_MAX:])}."
    if len(drawn) < runs:
        yield f"{counted(runs - len(drawn), 'run')} without {against}."
    if len(finite) < len(drawn):
        yield f"{counted(len(drawn) - len(finite), 'run')} whose {against} cannot be drawn."
    if finite:
        scale = scale_of(list(finite.values()))
        beyond = sum(not scale.has(value) for value in finite.values())
        if beyond:
            yield f"{counted(beyond, 'run')} beyond the scale, at its end."
