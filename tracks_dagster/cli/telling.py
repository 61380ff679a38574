"""Tell what came of each of many things, as soon as it is known: one that fails stops no other."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import click

from tracks_dagster.cli import BAD_NEWS
from tracks_dagster.cli.common import print_json
from tracks_dagster.track.errors import TracksError
from tracks_dagster.track.ports import ObjectStore
from tracks_dagster.track.records import Json


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """One result, for a program and for a person; is_bad: the command exits with 1."""

    row: dict[str, Json]
    text: str
    is_bad: bool


def of_every_run(store: ObjectStore, one: Callable[[str], Iterable[Told]]) -> Iterator[Told]:
    """Yield what `one` tells of each run of the store; where it raises, that is told as a result."""
    for run_id in store.folders("runs/"):
        try:
            yield from one(run_id)
        except TracksError as error:
            row = {"run_id": run_id, "status": "failed", "problem": str(error)}
            yield Told(row=row, text=f"failed      {run_id}: {error}", is_bad=True)


def tell(results: Iterable[Told], *, as_json: bool, nothing: str) -> int:
    """Print each result as it comes, or all as one JSON array; return the exit code.

    nothing: what is said to a person when there is no result.
    """
    told: list[Told] = []
    for each in results:
        told.append(each)
        if not as_json:
            click.echo(each.text)
    if as_json:
        print_json([each.row for each in told])
    elif not told:
        click.echo(nothing)
    return BAD_NEWS if any(each.is_bad for each in told) else 0
