"""The metrics of a run, or of several, as a page shows them: in groups, found, starred, folded, paged.

Pure. A script may report a thousand names, and only what is drawn is read. A group is the name before
`/`; without one, what is measured: the training, an evaluation, the speed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from tracks_dagster.curves.curve import SAMPLES_PER_S, SPEED, TOKENS_PER_S, TRAINING, Metric
from tracks_dagster.track.journal_lines import DEVICE, EVALUATED, LOSS, OWN, RANKS
from tracks_dagster.track.text.units import counted

PANELS_MAX = 24  # on one page
MISSING_NAMED_MAX = 3  # runs that do not have a metric
GROUPS_LISTED_MAX = 60
GROUPS_MAX = 20  # of one run's that are offered, the largest
STARRED = "★"
GROUPS = {
    STARRED: "Starred",
    TRAINING: "Training",
    EVALUATED: "Evaluated in training",
    SPEED: "Speed",
    DEVICE: "Device of rank 0",
}
TITLES = {  # of what is measured, by its column; a script's metric keeps its own name
    "lr": "learning rate",
    "grad_norm": "gradient norm",
    "step_s": "time of a step",
    "data_s": "wait for data",
    "own_s": "own compute of rank 0",
    "exchange_s": "exchange with other ranks",
    SAMPLES_PER_S: "samples per second",
    TOKENS_PER_S: "tokens per second",
    "util_percent": "utilisation",
    "memory_bytes": "device memory",
    "memory_total_bytes": "device memory in all",
    "power_w": "power",
    "temperature_c": "temperature",
    "rss_bytes": "memory of the process",
    "cpu_percent": "processor",
    "disk_free_bytes": "free disk",
    "read_bytes": "read from disk",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """What of the metrics is asked for. only: names, all where it is empty; page: from 0."""

    only: tuple[str, ...] = ()
    star: tuple[str, ...] = ()
    hide: tuple[str, ...] = ()
    fold: tuple[str, ...] = ()
    page: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricLine:
    """One panel. title: what people call it; missing: which runs do not have it, in words."""

    name: str
    title: str
    unit: str
    missing: str
    is_starred: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricGroup:
    """Panels under one heading. count: of all its metrics, on whichever page."""

    name: str
    title: str
    count: int
    is_folded: bool
    lines: tuple[MetricLine, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Catalogue:
    """The panels of one page. total: metrics that were found; hidden: names; groups: those with a
    panel on this page, then the folded ones; more_groups: how many folded ones are not listed."""

    groups: tuple[MetricGroup, ...]
    total: int
    hidden: tuple[str, ...]
    page: int
    pages: int
    more_groups: int = 0

    @property
    def lines(self) -> list[MetricLine]:
        """The panels of the page, in order."""
        return [line for group in self.groups for line in group.lines]


def title_of(metric: Metric) -> str:
    """Return what people call a metric."""
    return TITLES.get(metric.column, metric.name)


def group_of(metric: Metric) -> str:
    """Return the name of a metric's group: what is before `/` in a name of the script."""
    own = metric.column.removeprefix(OWN)
    prefix, slash, _ = own.partition("/")
    return prefix if slash and own != metric.column else metric.group


def catalogue(
    runs: Mapping[str, Sequence[Metric]], wanted: Wanted, found: Collection[str] | None = None
) -> Catalogue:
    """Return a page of the metrics that at least one of the runs has.

    runs: by run its metrics, in their order. found: names that a search found, None for all.
    """
    having: dict[str, list[str]] = {}
    metrics: dict[str, Metric] = {}
    for run_id, of_run in runs.items():
        for metric in of_run:
            if metric.kind != RANKS:
                metrics.setdefault(metric.name, metric)
                having.setdefault(metric.name, []).append(run_id)
    names = set(metrics) if found is None else set(metrics) & set(found)
    if wanted.only:
        names &= set(wanted.only)
    hidden = tuple(name for name in metrics if name in names and name in wanted.hide)
    groups: dict[str, list[str]] = {STARRED: []}
    for name, metric in metrics.items():
        if name in names and name not in wanted.hide:
            is_starred = name in wanted.star
            groups.setdefault(STARRED if is_starred else group_of(metric), []).append(name)
    shown = [
        (group, name)
        for group, members in groups.items()
        if group not in wanted.fold
        for name in members
    ]
    pages = max(1, -(-len(shown) // PANELS_MAX))
    page = min(wanted.page, pages - 1)
    on_page: dict[str, list[str]] = {}
    for group, name in shown[page * PANELS_MAX : (page + 1) * PANELS_MAX]:
        on_page.setdefault(group, []).append(name)
    folded = [group for group in groups if groups[group] and group in wanted.fold]

    def line(name: str) -> MetricLine:
        metric = metrics[name]
        return MetricLine(
            name=name,
            title=title_of(metric),
            unit=metric.unit,
            missing=_missing([run_id for run_id in runs if run_id not in having[name]]),
            is_starred=name in wanted.star,
        )

    return Catalogue(
        groups=tuple(
            MetricGroup(
                name=group,
                title=GROUPS.get(group, group),
                count=len(groups[group]),
                is_folded=group in wanted.fold,
                lines=tuple(line(name) for name in on_page.get(group, ())),
            )
            for group in (*on_page, *folded[:GROUPS_LISTED_MAX])
        ),
        total=sum(map(len, groups.values())),
        hidden=hidden,
        page=page,
        pages=pages,
        more_groups=max(0, len(folded) - GROUPS_LISTED_MAX),
    )


def _missing(run_ids: Sequence[str]) -> str:
    """Return "not of a, b and 3 more runs"; "" where every run has it."""
    if not run_ids:
        return ""
    named = ", ".join(run_ids[:MISSING_NAMED_MAX])
    more = len(run_ids) - MISSING_NAMED_MAX
    return f"not of {named}" + (f" and {counted(more, 'more run')}" if more > 0 else "")


# --- of one run: a group at a time, the loss first --------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricPage:
    """names: of the metrics that are drawn, in order; total: of the group, or of all; group: "" for
    all; groups: each with its number of metrics, where there is more than one page; page: from 0."""

    names: tuple[str, ...]
    total: int
    group: str
    groups: tuple[tuple[str, int], ...]
    page: int
    pages: int

    @property
    def words(self) -> str:
        """Which of how many they are; "" where all are on the page."""
        if self.pages < 2 and not self.group:
            return ""
        first = self.page * PANELS_MAX
        return f"{first + 1} to {first + len(self.names)} of {self.total}"


def metric_page(metrics: Sequence[Metric], group: str = "", page: int = 0) -> MetricPage:
    """Return a page of the metrics of a group, of all for "" and for a group that there is not."""
    counts = Counter(map(group_of, metrics))
    group = group if group in counts else ""
    found = [each.name for each in metrics if not group or group_of(each) == group]
    found.sort(key=lambda name: name != LOSS)
    pages = max(1, -(-len(found) // PANELS_MAX))
    page = min(page, pages - 1)
    is_small = len(metrics) <= PANELS_MAX
    return MetricPage(
        names=tuple(found[page * PANELS_MAX : (page + 1) * PANELS_MAX]),
        total=len(found),
        group=group,
        groups=() if is_small else tuple(counts.most_common(GROUPS_MAX)),
        page=page,
        pages=pages,
    )
