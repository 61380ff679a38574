"""Played queues as one SVG element, a panel a policy over the same hours. Pure.

    FIFO        ┌base────┐┌wide┐        few devices: a row each, a bar a stay
                          └────┘
                ▁▂▅▅▂▁                  below: devices that were waited for

Many devices, or many stays, are areas instead: devices held by each class, one above another. The
element brings its own colours, for light and dark, and words for readers who do not see it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from itertools import pairwise

from tracks_dagster.wings.lab.simulation.schedule_figures import Figures
from tracks_dagster.wings.lab.simulation.served import Played, Served, Stay
from tracks_dagster.wings.lab.simulation.workloads import DAY_S, HOUR_S, MINUTE_S

WIDTH, LEFT, RIGHT = 960, 12, 12
LEGEND, TITLE, GAP, FOOT = 30, 20, 14, 26
ROW = 15  # of a device
AREA = 90  # of all devices together
QUEUE = 26
ROWS_MAX = 16  # devices; more are areas
BARS_MAX = 300  # of a panel
COLUMNS = 240  # of an area
COLOURS = 8
LABEL_CHARACTER = 6.2  # width of one
TICKS_MAX = 12
TICKS_S = (
    *(MINUTE_S, 5 * MINUTE_S, 15 * MINUTE_S, HOUR_S, 2 * HOUR_S, 4 * HOUR_S, 12 * HOUR_S),
    *(DAY_S, 2 * DAY_S, 7 * DAY_S, 14 * DAY_S, 28 * DAY_S, 91 * DAY_S, 364 * DAY_S),
)

_STYLE = """
.schedule { --ink: #1d2024; --soft: #5c636d; --rule: #d9dce1; --well: #f1f2ef; --ground: #fcfcfa;
  background: var(--ground); font: 11px system-ui, sans-serif; }
.schedule text { fill: var(--soft); font-size: 11px; } .schedule .name { fill: var(--ink);
  font-weight: 600; font-size: 13px; } .schedule .in { fill: #fff; }
.schedule .well { fill: var(--well); } .schedule .rule { stroke: var(--rule); stroke-width: 1; }
.schedule .queue { fill: var(--soft); opacity: .45; } .schedule .cut { stroke: var(--ink);
  stroke-width: 2; }
.k0 { fill: #2563c9; } .k1 { fill: #c2410c; } .k2 { fill: #15803d; } .k3 { fill: #9333ea; }
.k4 { fill: #0e7490; } .k5 { fill: #a16207; } .k6 { fill: #be185d; } .k7 { fill: #6b7280; }
@media screen and (prefers-color-scheme: dark) { .schedule { --ink: #e7e9ec; --soft: #9aa2ad;
  --rule: #333941; --well: #1f2228; --ground: #16181c; } }
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Panel:
    """One policy's play and what it comes to."""

    figures: Figures
    played: Played


@dataclass(frozen=True, slots=True, kw_only=True)
class _Frame:
    """Hours over the width. colours: class → its colour."""

    length_s: float
    colours: Mapping[str, str]

    def x(self, at_s: float) -> float:
        return LEFT + at_s / self.length_s * (WIDTH - LEFT - RIGHT)


def schedule_picture(panels: Sequence[Panel]) -> str:
    """Return the SVG element, with everything that it needs to be a file of its own."""
    classes = [row.name for row in panels[0].figures.classes[1:]]
    colours = {name: f"k{index % COLOURS}" for index, name in enumerate(classes)}
    length_s = max(each.figures.length_s for each in panels) or 1.0
    frame = _Frame(length_s=length_s, colours=colours)
    body: list[str] = []
    top = float(LEGEND)
    for panel in panels:
        lines, top = _panel(panel, frame, top)
        body += lines
    height = top + FOOT
    words = "; ".join(_words(each.figures) for each in panels)
    return "\n".join(
        [
            f'<svg class="schedule" xmlns="http://www.w3.org/2000/svg" role="img" '
            f'viewBox="0 0 {WIDTH} {height:.0f}" aria-label="{escape(words)}">',
            f"<style>{_STYLE}</style>",
            f'<rect width="{WIDTH}" height="{height:.0f}" fill="var(--ground)"/>',
            *_legend(colours),
            *_axis(frame, top),
            *body,
            "</svg>",
        ]
    )


def _words(each: Figures) -> str:
    return (
        f"{each.policy}: {each.working:.0%} of the device time in use, half waited at most "
        f"{span_text(each.all.wait.median_s)}, 95 % at most {span_text(each.all.wait.p95_s)}"
    )


def span_text(seconds: float) -> str:
    """Return a length of time in three digits: 0 s, 45 s, 3.2 min, 14 h, 2.5 d."""
    for size, unit in ((DAY_S, "d"), (HOUR_S, "h"), (MINUTE_S, "min")):
        if seconds >= (2 * DAY_S if unit == "d" else size):
            amount = seconds / size
            return f"{amount:.0f} {unit}" if amount >= 10 else f"{amount:.1f} {unit}"
    return f"{seconds:.0f} s"


def _panel(panel: Panel, frame: _Frame, top: float) -> tuple[list[str], float]:
    """Return the lines of a panel, and where the next one begins."""
    played, figures = panel.played, panel.figures
    name = f"{figures.policy}{', yours' if figures.is_yours and figures.policy != 'yours' else ''}"
    words = _words(figures).partition(": ")[2]
    lines = [
        f'<text class="name" x="{LEFT}" y="{top + 14:.0f}">{escape(name)}</text>',
        f'<text x="{WIDTH - RIGHT}" y="{top + 14:.0f}" text-anchor="end">{escape(words)}</text>',
    ]
    top += TITLE
    stays = sum(len(each.stays) for each in played.served)
    is_small = len(played.workload.devices) <= ROWS_MAX and stays <= BARS_MAX
    height = ROW * len(played.workload.devices) if is_small else AREA
    lines.append(
        f'<rect class="well" x="{LEFT}" y="{top:.0f}" width="{WIDTH - LEFT - RIGHT}" '
        f'height="{height}"/>'
    )
    lines += (_bars if is_small else _areas)(played, figures, frame, top)
    top += height + 3
    lines += _queue(played, frame, top)
    return lines, top + QUEUE + GAP


def _bars(played: Played, figures: Figures, frame: _Frame, top: float) -> Iterator[str]:
    rows = {device.name: row for row, device in enumerate(played.workload.devices)}
    for served in played.served:
        workload_class = served.submission.workload_class or figures.default_class
        for stay in served.stays:
            yield from _bar(served, stay, workload_class, rows, played.began_s, frame, top)


def _bar(
    served: Served,
    stay: Stay,
    workload_class: str,
    rows: Mapping[str, int],
    began_s: float,
    frame: _Frame,
    top: float,
) -> Iterator[str]:
    """Yield a bar over neighbouring devices, with the name in the first of them."""
    submission = served.submission
    left, right = frame.x(stay.began_s - began_s), frame.x(stay.freed_s - began_s)
    title = (
        f"{submission.name}: {workload_class}, {submission.devices} devices, from "
        f"{span_text(stay.began_s - began_s)} to {span_text(stay.freed_s - began_s)}"
        f"{', moved' if stay.is_moved else ''}"
    )
    css = frame.colours[workload_class]
    for number, (first, last) in enumerate(_runs(sorted(rows[name] for name in stay.devices))):
        y, height = top + first * ROW, (last - first + 1) * ROW - 1
        yield (
            f'<rect class="{css}" x="{left:.1f}" y="{y:.0f}" width="{max(1.0, right - left - 1):.1f}" '
            f'height="{height}" rx="1.5"><title>{escape(title)}</title></rect>'
        )
        if stay.is_moved:
            yield (
                f'<line class="cut" x1="{right - 1:.1f}" x2="{right - 1:.1f}" y1="{y:.0f}" '
                f'y2="{y + height:.0f}"/>'
            )
        if not number and len(submission.name) * LABEL_CHARACTER < right - left - 8:
            label = escape(submission.name)
            yield f'<text class="in" x="{left + 4:.1f}" y="{y + 11:.0f}">{label}</text>'


def _runs(rows: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Yield (first, last) of each run of neighbours: 1 2 5 are (1, 2) and (5, 5)."""
    first = rows[0]
    for row, after in pairwise([*rows, rows[-1] + 2]):
        if after != row + 1:
            yield first, row
            first = after


def _areas(played: Played, figures: Figures, frame: _Frame, top: float) -> Iterator[str]:
    """Yield devices held by each class, the highest class at the bottom."""
    most = max(1.0, float(sum(each.out is None for each in played.workload.devices)))
    floor = [0.0] * COLUMNS
    for row in figures.classes[1:]:
        used = _columns(
            (
                (
                    stay.began_s - played.began_s,
                    stay.freed_s - played.began_s,
                    one.submission.weight,
                )
                for one in played.served
                if (one.submission.workload_class or figures.default_class) == row.name
                for stay in one.stays
            ),
            frame,
        )
        ceiling = [below + each for below, each in zip(floor, used, strict=True)]
        points = _outline(floor, ceiling, frame, top + AREA, AREA / most)
        css = frame.colours[row.name]
        yield f'<polygon class="{css}" points="{points}"><title>{escape(row.name)}</title></polygon>'
        floor = ceiling


def _queue(played: Played, frame: _Frame, top: float) -> Iterator[str]:
    """Yield the devices that were waited for."""
    waited = _columns(_waits(played), frame)
    most = max(waited)
    if most > 0:
        points = _outline([0.0] * COLUMNS, waited, frame, top + QUEUE, QUEUE / most)
        yield f'<polygon class="queue" points="{points}"/>'
    label = "devices waited for" if not most else f"devices waited for, {most:.0f} at most"
    yield (
        f'<text x="{WIDTH - RIGHT - 4}" y="{top + 11:.0f}" text-anchor="end">{label}</text>'
        f'<line class="rule" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{top + QUEUE:.0f}" '
        f'y2="{top + QUEUE:.0f}"/>'
    )


def _waits(played: Played) -> Iterator[tuple[float, float, float]]:
    for each in played.served:
        began = [each.submission.at_s, *(stay.freed_s for stay in each.stays if stay.is_moved)]
        ended = [stay.began_s for stay in each.stays]
        ended += [played.ended_s] if len(ended) < len(began) else []
        for from_s, until_s in zip(began, ended, strict=True):
            yield from_s - played.began_s, until_s - played.began_s, each.submission.weight


def _columns(spans: Iterable[tuple[float, float, float]], frame: _Frame) -> list[float]:
    """Return the mean over each column of (from, until, weight)."""
    width_s = frame.length_s / COLUMNS
    # A span adds to the columns at its ends what it covers of them, and its weight to those between.
    found = [0.0] * (COLUMNS + 1)
    steps: defaultdict[int, float] = defaultdict(float)
    for from_s, until_s, weight in spans:
        if until_s <= from_s:
            continue
        first = min(COLUMNS - 1, int(from_s / width_s))
        last = min(COLUMNS - 1, int(until_s / width_s))
        if first == last:
            found[first] += weight * (until_s - from_s) / width_s
            continue
        found[first] += weight * (first + 1 - from_s / width_s)
        found[last] += weight * min(1.0, until_s / width_s - last)
        steps[first + 1] += weight
        steps[last] -= weight
    level = 0.0
    for column in range(COLUMNS):
        level += steps[column]
        found[column] += level
    return found[:COLUMNS]


def _outline(
    floor: Sequence[float], ceiling: Sequence[float], frame: _Frame, bottom: float, scale: float
) -> str:
    """Return the corners of an area of steps; where nothing changes there is none."""
    width = (WIDTH - LEFT - RIGHT) / COLUMNS
    upper = _stairs([bottom - each * scale for each in ceiling], width)
    lower = _stairs([bottom - each * scale for each in floor], width)
    return " ".join(f"{x:.1f},{y:.1f}" for x, y in (*upper, *reversed(lower)))


def _stairs(heights: Sequence[float], width: float) -> list[tuple[float, float]]:
    found: list[tuple[float, float]] = []
    for column, height in enumerate(heights):
        if not found or abs(found[-1][1] - height) >= 0.05:
            if found:
                found.append((LEFT + column * width, found[-1][1]))
            found.append((LEFT + column * width, height))
    return [*found, (LEFT + len(heights) * width, found[-1][1])]


def _legend(colours: Mapping[str, str]) -> Iterator[str]:
    x = float(LEFT)
    for name, css in colours.items():
        yield f'<rect class="{css}" x="{x:.0f}" y="8" width="10" height="10" rx="2"/>'
        yield f'<text x="{x + 15:.0f}" y="17">{escape(name)}</text>'
        x += 30 + len(name) * LABEL_CHARACTER


def _axis(frame: _Frame, bottom: float) -> Iterator[str]:
    step_s = next((s for s in TICKS_S if frame.length_s / s <= TICKS_MAX), TICKS_S[-1])
    unit, size = ("d", DAY_S) if step_s >= DAY_S else ("h", HOUR_S)
    if step_s < HOUR_S:
        unit, size = "min", MINUTE_S
    for number in range(int(frame.length_s / step_s) + 1):
        x = frame.x(number * step_s)
        yield (
            f'<line class="rule" x1="{x:.1f}" x2="{x:.1f}" y1="{LEGEND}" y2="{bottom - GAP:.0f}"/>'
        )
        anchor = "start" if not number else "end" if x > WIDTH - RIGHT - 20 else "middle"
        text = f"{number * step_s / size:g} {unit}"
        yield f'<text x="{x:.1f}" y="{bottom + 4:.0f}" text-anchor="{anchor}">{text}</text>'
