"""Which of a run's metrics a page draws: those of a group, a page at a time. Pure.

A script may report a thousand names, and only what is drawn is read. A group is what is before the
first `/` of a name; without one, what is measured: training, evaluated, speed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from tracks_dagster.curves.curve import Metric
from tracks_dagster.track.journal_lines import LOSS

PANELS_MAX = 24  # on one page
GROUPS_MAX = 20  # that are offered, the largest


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


def group_of(metric: Metric) -> str:
    """Return the group of a metric, by its name."""
    prefix, slash, _ = metric.name.partition("/")
    return prefix if slash else metric.group
