"""Writes the picture of played queues: one SVG file, or an HTML page that has it and the figures."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from tracks_dagster.review.effects import pages
from tracks_dagster.track.errors import InvalidInput
from tracks_dagster.track.text.safe_text import visible
from tracks_dagster.wings.lab.simulation.schedule_figures import MEANINGS
from tracks_dagster.wings.lab.simulation.schedule_picture import Panel, schedule_picture, span_text
from tracks_dagster.wings.lab.simulation.workloads import Workload

SVG, HTML = ".svg", ".html"
TEMPLATE = "schedule.html"
STYLES = Path(pages.__file__).parent  # one look for all pages


def check_picture(path: Path) -> None:
    """Raise InvalidInput where the name does not say which of the two it is to be."""
    if path.suffix.lower() not in (SVG, HTML):
        raise InvalidInput(
            f"{path} is neither a picture nor a page: its name ends in {SVG} or {HTML}."
        )


def write_picture(path: Path, panels: Sequence[Panel], workload: Workload) -> None:
    """Write the file as a whole: another one of that name is replaced. Raises InvalidInput."""
    check_picture(path)
    picture = schedule_picture(panels)
    text = picture if path.suffix.lower() == SVG else _page(picture, panels, workload)
    try:
        unfinished = path.with_name(f".{path.name}.{os.getpid()}")
        unfinished.write_text(visible(text), encoding="utf-8")
        unfinished.replace(path)
    except (OSError, ValueError) as error:  # ValueError: a name that no file can have
        why = getattr(error, "strerror", None) or error
        raise InvalidInput(f"Cannot write the picture {path}: {why}. Name another file.") from error


def _page(picture: str, panels: Sequence[Panel], workload: Workload) -> str:
    import jinja2  # an SVG file needs no template

    pages = jinja2.Environment(
        loader=jinja2.FileSystemLoader([Path(__file__).parent, STYLES]),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return pages.get_template(TEMPLATE).render(
        workload=workload,
        rows=[panel.figures for panel in panels],
        classes=list(zip(*(panel.figures.classes for panel in panels), strict=True)),
        meanings=MEANINGS,
        picture=picture,
        span=span_text,
    )
