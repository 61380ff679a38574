"""Renders the pages: templates, the style sheet, and curves drawn as `review` draws them.

Every value is escaped; only SVG of our own is not. Nothing on a page leads a browser to another machine
but links that a person clicks.
"""

from __future__ import annotations

import hashlib
import re
import threading
import zlib
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from functools import cache
from pathlib import Path

import jinja2
from markupsafe import Markup

from tracks_dagster.curves.curve import (
    GROUP_WORDS,
    TRAINING,
    Curve,
    Curves,
    Metric,
    Point,
    axis_range,
)
from tracks_dagster.curves.effects.pixels import round_up
from tracks_dagster.review.effects.pages import report
from tracks_dagster.review.effects.pages.charts import Look, compare_panel, curve_panel
from tracks_dagster.review.progress import X_LABEL, progress_and_burn
from tracks_dagster.track.journal_lines import DEVICE, LOSS, STEPS
from tracks_dagster.track.states.run_state import RunState
from tracks_dagster.track.text.safe_text import visible
from tracks_dagster.wings.watch.board import formats
from tracks_dagster.wings.watch.board.colours import COLOURS
from tracks_dagster.wings.watch.board.comparison import RUNS_MAX, ColouredRun
from tracks_dagster.wings.watch.board.run_page import Panel

HERE = Path(__file__).with_name("pages")
STYLES = (  # in this order: what comes later counts
    Path(report.__file__).with_name("palette.css"),
    Path(report.__file__).with_name("charts.css"),
    HERE / "vendor" / "uPlot.css",
    HERE / "board.css",
)
SCRIPTS = {  # by address
    "board.js": HERE / "board.js",
    "idiomorph.js": HERE / "vendor" / "idiomorph.js",
    "compare.js": HERE / "compare.js",
    "uplot.js": HERE / "vendor" / "uPlot.js",
}
FILES = ("board.css", *SCRIPTS)
WIDTH, HEIGHT = 420, 190  # of a panel, in the units of its text
LARGE = (640, 306)  # of the loss, which takes the place of four: here its marks have words
PANELS_MAX = 24  # on one page
SENT_MAX = 64  # parts of pages, compressed: of each open page the last one
_EDGES = re.compile(r' data-\w+="[^"]*"')


@cache
def file(name: str) -> tuple[str, str]:
    """Return a file of FILES and its type."""
    if name in SCRIPTS:
        return SCRIPTS[name].read_text(encoding="utf-8"), "text/javascript"
    styles = [path.read_text(encoding="utf-8") for path in STYLES]
    return "\n".join([*styles, *_run_rules()]), "text/css"


def _run_rules() -> Iterator[str]:
    """Yield the classes of runs' colours, and what hides the lines of a run whose box is not ticked."""
    for number in range(COLOURS):
        yield f".r{number} {{ stroke: currentColor; color: var(--r{number}); }}"
    for seat in range(RUNS_MAX):
        lines = f":is(.panels, .parallel) .s{seat}"
        yield f"main:has(#show-s{seat}:not(:checked)) {lines} {{ display: none; }}"


@cache
def assets_version() -> str:
    """Return a digest of style and scripts, so that a browser never keeps older ones."""
    return digest("".join(file(name)[0] for name in FILES))


def digest(text: str) -> str:
    """Return a short digest of a page."""
    return hashlib.sha256(text.encode()).hexdigest()[:16]


class Sent:
    """The parts of pages that were sent last, by their version: what an open page still shows. Safe in
    threads."""

    def __init__(self) -> None:
        self._parts: OrderedDict[str, bytes] = OrderedDict()
        self._lock = threading.Lock()

    def find(self, version: str) -> str | None:
        """Return a part; None where it is too long ago."""
        with self._lock:
            found = self._parts.get(version)
        return None if found is None else zlib.decompress(found).decode()

    def add(self, version: str, part: str) -> None:
        """Remember a part, instead of the one of SENT_MAX that was not sent for longest."""
        data = zlib.compress(part.encode(), 1)
        with self._lock:
            self._parts[version] = data
            self._parts.move_to_end(version)
            while len(self._parts) > SENT_MAX:
                self._parts.popitem(last=False)


@cache
def _templates() -> jinja2.Environment:
    found = jinja2.Environment(
        loader=jinja2.FileSystemLoader(HERE),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    found.filters["rich"] = report.rich
    found.filters["known"] = lambda value: "" if value == formats.UNKNOWN else value
    return found


def render_part(part: str, view: object) -> str:
    """Return what is inside of a page's `main`; no control character is in it."""
    return visible(_templates().get_template(part).render(view=view))


def render_page(
    part: str,
    title: str,
    body: str,
    *,
    version: str,
    as_of: str,
    ui_url: str,
    is_live: bool,
    is_away: bool,
    actor: str = "",
) -> str:
    """Return a whole page around a part that was rendered.

    version: of that part, as it is sent; is_away: it only says why there is none; actor: in whose name
    forms are recorded, "" where there are none.
    """
    return visible(
        _templates()
        .get_template("base.html")
        .render(
            part=part,
            title=title,
            body=Markup(body),
            version=version,
            assets=assets_version(),
            as_of=as_of,
            ui_url=ui_url,
            is_live=is_live,
            is_away=is_away,
            actor=actor,
        )
    )


def panels_of(
    curves: Curves, newest: Mapping[str, Point], look: Look
) -> tuple[tuple[Panel, ...], tuple[str, ...]]:
    """Return the curves as panels, those of the devices last, and sentences about what is left out.

    newest: the last value of each of the whole curve, beside whichever part is drawn.
    """
    devices = [each for each in curves.curves if each.group == DEVICE]
    found = [*(each for each in curves.curves if each.group != DEVICE)][:PANELS_MAX] + devices
    x_range = curves.x_range
    if x_range is not None and look.is_growing:
        x_range = (x_range[0], round_up(x_range[1]))
    drawn = [_panel(each, newest.get(each.name), curves, x_range, look) for each in found]
    words = list(curves.lost)
    if curves.names_left_out:
        words.append(
            f"The script reports more names than are read: at least {curves.names_left_out} are left "
            "out."
        )
    return tuple(each for each in drawn if each.svg), tuple(words)


def _panel(
    curve: Curve,
    last: Point | None,
    curves: Curves,
    x_range: tuple[float, float] | None,
    look: Look,
) -> Panel:
    value = "" if last is None else f"{formats.number(last.value)} {curve.unit}".rstrip()
    is_large = curve.name == LOSS
    width, height = LARGE if is_large else (WIDTH, HEIGHT)
    return Panel(
        name=curve.name,
        value=value if last is None else formats.at_step(value, last.step),
        svg=curve_panel(
            curve,
            curves.marks,
            x_label=curves.x_label,
            x_range=x_range,
            width=width,
            height=height,
            look=look,
        ),
        kind=GROUP_WORDS.get(curve.group, ""),
        is_large=is_large,
    )


def progress_panels(state: RunState, now: datetime) -> tuple[Panel, ...]:
    """Return what the run kept beside what it took, by time; none of a run with a single attempt."""
    drawn = []
    for curve in progress_and_burn(state, now):
        value = f"{formats.number(curve.series[0].points[-1].value)} {curve.unit}"
        svg = curve_panel(curve, x_label=X_LABEL, width=WIDTH, height=HEIGHT)
        still = _EDGES.sub("", svg)  # the cross and the zoom are by steps, and this axis has hours
        drawn.append(Panel(name=curve.name, value=value, svg=still))
    return tuple(drawn)


def compared_panels(found: Sequence[tuple[ColouredRun, Curves]], look: Look) -> list[Panel]:
    """Return one panel for each metric that at least two of the runs have; the first run's first.

    Of one run alone all of its metrics.
    """
    needed = min(2, len(found))
    names = dict.fromkeys(
        each.name for _, curves in found for each in curves.curves if not each.is_by_rank
    )
    ranges = [each for _, curves in found if (each := curves.x_range) is not None]
    shared = axis_range(place for each in ranges for place in each) if ranges else None
    panels = []
    for name in names:
        drawn = {run.run_id: curves.find(name) or _nothing(name) for run, curves in found}
        if sum(bool(curve.series) for curve in drawn.values()) < needed:
            continue
        is_large = name == LOSS
        width, height = LARGE if is_large else (WIDTH, HEIGHT)
        label = found[0][1].x_label
        svg = compare_panel(
            drawn,
            x_label=label,
            x_range=shared,
            width=width,
            height=height,
            look=look,
            colours={run.run_id: run.classes for run, _ in found},
        )
        if svg:
            panels.append(Panel(name=name, value="", svg=svg, is_large=is_large))
        if len(panels) == PANELS_MAX:
            break
    return panels


def _nothing(name: str) -> Curve:
    """Return the curve of a run that has none."""
    metric = Metric(name=name, group=TRAINING, kind=STEPS, column=name)
    return Curve(metric=metric, series=())
