"""What a request asks for, checked, and links to the same page with something else asked for."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import urlencode

from starlette.requests import Request

from tracks_dagster.curves.curve import AXES, STEP
from tracks_dagster.review.effects.pages.charts import Look
from tracks_dagster.review.run_table import names_of
from tracks_dagster.track.errors import InvalidInput
from tracks_dagster.track.states.run_state import AttemptState, RunState, known_attempt
from tracks_dagster.wings.watch.board import formats
from tracks_dagster.wings.watch.board.catalogue import MetricPage, Wanted
from tracks_dagster.wings.watch.board.log_lines import ALL, LEVELS, LogAsked
from tracks_dagster.wings.watch.board.run_page import Choice, Link

TRIALS = ("show", "sort")
TABLE = ("where", "sort", "columns", "group", "differ")
PAGES_MAX = 1000
LOG_RANKS_MAX = 16  # as links
SCALES = LINEAR, LOG = "linear", "log"
SMOOTHS = (0, 10, 100, 1000)  # steps, as links; 0 for none
SMOOTH_STEPS_MAX = 10**6
TEXT_CHARACTERS_MAX = 200  # that a log is searched for
NAMES_MAX = 500  # of metrics or runs, of one key of an address
FIND_CHARACTERS_MAX = 200
QUERY_CHARACTERS_MAX = 32_768  # of an address: most links of a page hold all of it

_SMOOTH = re.compile(r"[0-9]{1,9}")
_WHOLE = re.compile(r"[0-9]{1,15}")
_RANK = re.compile(r"[0-9]{1,6}")
_STEPS = re.compile(r"([0-9]{1,12})-([0-9]{1,12})")
_NUMBER = r"[0-9]{1,15}(?:\.[0-9]{1,15})?(?:e[+-]?[0-9]{1,3})?"
_WITHIN = re.compile(rf"({_NUMBER})\.\.({_NUMBER})")


def check_length(request: Request) -> None:
    """Raise InvalidInput for an address that asks for more than a page can repeat in its links."""
    if (length := len(request.url.query)) > QUERY_CHARACTERS_MAX:
        raise InvalidInput(
            f"This address has {length} characters after its ?; at most {QUERY_CHARACTERS_MAX} are "
            "read. Ask for less."
        )


def axis(request: Request) -> str:
    """Return the axis of the curves; raises InvalidInput for one that there is not."""
    by = request.query_params.get("by", STEP)
    if by not in AXES:
        raise InvalidInput(f"by={by!r} is not an axis of curves: use {', '.join(AXES)}.")
    return by


def rank(request: Request, name: str = "rank") -> int | None:
    """Return the rank that is asked for by that name; raises InvalidInput for what is not a rank."""
    text = request.query_params.get(name, "")
    if text and _RANK.fullmatch(text) is None:
        raise InvalidInput(f"{name}={text!r} is not a rank: write a whole number from 0 on.")
    return int(text) if text else None


def attempt(request: Request, state: RunState) -> AttemptState | None:
    """Return the attempt that is asked for, by default the newest; raises InvalidInput, UnknownRun."""
    text = request.query_params.get("attempt", "").removeprefix("a")
    if not text:
        return state.last_attempt
    if _RANK.fullmatch(text) is None:
        raise InvalidInput(
            f"attempt={text[:40]!r} is not an attempt: write a whole number from 1 on."
        )
    return known_attempt(state, int(text))


def log_asked(request: Request, attempt_id: int) -> LogAsked:
    """Return which lines of a log are asked for; raises InvalidInput."""
    given = request.query_params
    level, first = given.get("level", "") or ALL, given.get("first", "")
    if level not in LEVELS:
        raise InvalidInput(
            f"level={level[:40]!r} is not a level of a log: use {', '.join(LEVELS)}."
        )
    if first and _SMOOTH.fullmatch(first) is None:
        raise InvalidInput(f"first={first[:40]!r} is not a line: write a whole number from 0 on.")
    return LogAsked(
        attempt_id=attempt_id,
        rank=rank(request),
        level=level,
        text=given.get("text", "")[:TEXT_CHARACTERS_MAX].strip(),
        first=int(first) if first else None,
    )


def step_range(request: Request) -> tuple[int, int] | None:
    """Return from which step to which curves are asked for; raises InvalidInput for what is neither."""
    text = request.query_params.get("steps", "")
    match = _STEPS.fullmatch(text)
    if text and (match is None or int(match[1]) > int(match[2])):
        raise InvalidInput(
            f"steps={text!r} is not a range of steps: write for example steps=100-200."
        )
    return None if match is None else (int(match[1]), int(match[2]))


def within(request: Request) -> tuple[float, float] | None:
    """Return which part of the axis is asked for: `x=LOW..HIGH`, or a range of steps; None for all of
    it. Raises InvalidInput for what is neither."""
    text = request.query_params.get("x", "")
    if not text:
        steps = step_range(request)
        return None if steps is None else (float(steps[0]), float(steps[1]))
    match = _WITHIN.fullmatch(text)
    if match is None or not float(match[1]) < float(match[2]) < math.inf:
        raise InvalidInput(
            f"x={text[:40]!r} is not a part of an axis: write for example x=100..200."
        )
    return float(match[1]), float(match[2])


def wanted(request: Request) -> Wanted:
    """Return which of the metrics are asked for; raises InvalidInput."""
    return Wanted(
        only=listed(request, "metric"),
        star=listed(request, "star"),
        hide=listed(request, "hide"),
        fold=listed(request, "fold"),
        page=page(request),
    )


def listed(request: Request, name: str) -> tuple[str, ...]:
    """Return every value of a key, each once."""
    return tuple(dict.fromkeys(filter(None, request.query_params.getlist(name))))[:NAMES_MAX]


def whole(request: Request, name: str, otherwise: int, *, least: int = 0) -> int:
    """Return a whole number from `least` on; raises InvalidInput for what is not one."""
    text = request.query_params.get(name, str(otherwise))
    if _WHOLE.fullmatch(text) is None or int(text) < least:
        raise InvalidInput(
            f"{name}={text[:40]!r} is not a number: write a whole number from {least} on."
        )
    return int(text)


def find(request: Request) -> str:
    """Return the regular expression that metrics' names are searched by; raises InvalidInput."""
    text = request.query_params.get("find", "").strip()
    if len(text) > FIND_CHARACTERS_MAX:
        raise InvalidInput(
            f"find={text[:40]!r}… has {len(text)} characters; write at most {FIND_CHARACTERS_MAX}."
        )
    return text


def toggled(request: Request, name: str, value: str) -> str:
    """Return the address of this page with that value of a key, or without it where it has it."""
    items = request.query_params.multi_items()
    others = [each for each in items if each != (name, value) and each[0] != "page"]
    if (name, value) not in items:
        others.append((name, value))
    return f"?{urlencode(others)}"


def table(request: Request) -> dict[str, str]:
    """Return what the address asks of the table of all runs, without what is empty."""
    given = request.query_params
    return {key: text for key in TABLE if (text := given.get(key, "").strip())}


def trials(request: Request) -> dict[str, str]:
    """Return what the address asks of the trials of a study, without what is empty."""
    given = request.query_params
    return {key: text for key in TRIALS if (text := given.get(key, "").strip())}


def filter_of(asked: Mapping[str, str]) -> dict[str, Any]:
    """Return the filter and the order of a table."""
    return {"where": asked.get("where", ""), "order": names_of(asked.get("sort", ""))}


def page(request: Request) -> int:
    """Return which page of a table is asked for, from 0; raises InvalidInput."""
    text = request.query_params.get("page", "0")
    if _RANK.fullmatch(text) is None or int(text) > PAGES_MAX:
        raise InvalidInput(
            f"page={text[:40]!r} is not a page: write a number from 0 to {PAGES_MAX}."
        )
    return int(text)


def way_back(request: Request, steps: tuple[int, int] | None) -> Link | None:
    """Return the way back from a range of steps to all of them."""
    if steps is None:
        return None
    first, last = map(formats.grouped, steps)
    others = [each for each in request.query_params.multi_items() if each[0] != "steps"]
    return Link(label=f"steps {first} to {last}: show all", address=f"?{urlencode(others)}")


def look(request: Request) -> Look:
    """Return how curves are drawn; raises InvalidInput for a way that there is not."""
    scale = request.query_params.get("y", LINEAR)
    if scale not in SCALES:
        raise InvalidInput(f"y={scale!r} is not a scale of curves: use {', '.join(SCALES)}.")
    smooth = request.query_params.get("smooth", "0")
    if _SMOOTH.fullmatch(smooth) is None or int(smooth) > SMOOTH_STEPS_MAX:
        raise InvalidInput(
            f"smooth={smooth[:40]!r} is not a number of steps: write for example smooth=100, at most "
            f"{SMOOTH_STEPS_MAX}."
        )
    return Look(is_log=scale == LOG, smooth=int(smooth))


def choices(request: Request, by: str) -> tuple[Choice, ...]:
    """Return links to this page with its curves drawn another way. by: the axis they have."""
    chosen = look(request)
    scale = LOG if chosen.is_log else LINEAR
    smooths = sorted({*SMOOTHS, chosen.smooth})
    return (
        Choice(name="by", links=_links(request, "by", AXES, by)),
        Choice(name="scale", links=_links(request, "y", SCALES, scale)),
        Choice(
            name="average over steps",
            links=_links(request, "smooth", [str(each) for each in smooths], str(chosen.smooth)),
        ),
    )


def metric_choices(request: Request, shown: MetricPage) -> tuple[Choice, ...]:
    """Return links to the other groups and pages of a run's metrics; none where there is one page."""
    found = []
    if shown.groups:
        others = [("all", ""), *((f"{name} ({count})", name) for name, count in shown.groups)]
        links = [
            Link(
                label=label,
                address=f"{address(request, group=group, page='0')}#curves",
                is_chosen=group == shown.group,
            )
            for label, group in others
        ]
        found.append(Choice(name="group", links=tuple(links)))
    if shown.pages > 1:
        near = (("before", shown.page - 1), ("more", shown.page + 1))
        links = [
            Link(label=label, address=f"{address(request, page=str(number))}#curves")
            for label, number in near
            if 0 <= number < shown.pages
        ]
        found.append(Choice(name=f"metrics {shown.words}", links=tuple(links)))
    return tuple(found)


def _links(request: Request, name: str, values: Sequence[str], chosen: str) -> tuple[Link, ...]:
    return tuple(
        Link(
            label="none" if value == "0" else value,
            address=address(request, **{name: value}),
            is_chosen=value == chosen,
        )
        for value in values
    )


def without_run(request: Request, run_id: str) -> str:
    """Return the address of this comparison without one of its runs."""
    others = [each for each in request.query_params.multi_items() if each != ("run", run_id)]
    return f"?{urlencode(others)}"


def rank_links(request: Request, ranks: Sequence[int], chosen: int | None) -> tuple[Link, ...]:
    """Return a link to the log of each rank: of the first ones, and of the one that is shown."""
    near = [each for each in ranks if each == chosen or each in ranks[: LOG_RANKS_MAX - 1]]
    return tuple(
        Link(
            label=f"rank {each}",
            address=f"{address(request, rank=str(each))}#log",
            is_chosen=each == chosen,
        )
        for each in near
    )


def address(request: Request, **changes: str) -> str:
    """Return the address of this page with other values in its query."""
    others = [
        (name, value) for name, value in request.query_params.multi_items() if name not in changes
    ]
    return f"?{urlencode([*others, *changes.items()])}"
