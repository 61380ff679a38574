"""The device of every rank: what the newest lines of its journal say, and those before. Pure.

A page has a few ranks, because each has a journal of its own that is read for it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from tracks_dagster.wings.watch.board import formats
from tracks_dagster.wings.watch.board.heat_map import (
    DEVICE_USE,
    HeatMap,
    Scale,
    Values,
    heat_map,
    negative,
)
from tracks_dagster.wings.watch.board.record import Cell, Row, Section

RANKS_MAX = 16  # on a page
UTIL, MEMORY, MEMORY_TOTAL = "util_percent", "memory_bytes", "memory_total_bytes"
POWER, TEMPERATURE, HOST, CPU = "power_w", "temperature_c", "rss_bytes", "cpu_percent"

# From where on devices of the last years hold their clocks down is between 83 and 95 °C, by model
# (`nvidia-smi -q -d TEMPERATURE`); the light of resources goes by the driver's own word.
WARM = Scale(
    name="temperature",
    unit="°C, of the chip",
    edges=(70.0, 78.0, 85.0, 92.0),
    texts=("under 70", "70", "78", "85", "92 and more"),
    describe=lambda value: f"{value:.0f} °C over its newest lines",
)
FULL = Scale(
    name="device memory",
    unit="of what the device has",
    edges=(0.8, 0.9, 0.95, 0.98),
    texts=("under 80 %", "80 %", "90 %", "95 %", "98 % and more"),
    describe=lambda value: f"{100 * value:.0f} % of its memory is in use",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class DevicesPage:
    """All that devices.html shows. pages: (label, first rank) of each page, where there are several."""

    title: str
    run_id: str
    words: str
    section: Section
    maps: tuple[HeatMap, ...]
    pages: tuple[tuple[str, int], ...]
    first: int


def ranks_from(first: int, world_size: int) -> range:
    """Return the ranks of the page that begins with that rank, or of the last one before it."""
    first = min(first, max(0, world_size - 1)) // RANKS_MAX * RANKS_MAX
    return range(first, min(world_size, first + RANKS_MAX))


def devices_page(
    run_id: str,
    by_name: Mapping[str, Values],
    places: Mapping[int, str],
    ranks: Sequence[int],
    world_size: int,
) -> DevicesPage:
    """Return the page. by_name: column of a `device` line → each rank's values; places: of a rank."""
    firsts = range(0, world_size, RANKS_MAX)
    return DevicesPage(
        title=f"Devices of {run_id}",
        run_id=run_id,
        words=_words(by_name),
        section=Section(
            key="devices",
            title="Now",
            heads=(
                *("rank", "where", "utilisation", "memory", "power", "temperature"),
                *("host memory", "processor"),
            ),
            rows=tuple(_row(rank, by_name, places) for rank in ranks),
        ),
        maps=tuple(_maps(by_name, places)),
        pages=tuple(
            (f"ranks {first} to {min(world_size, first + RANKS_MAX) - 1}", first)
            for first in firsts
        )
        if len(firsts) > 1
        else (),
        first=ranks[0] if ranks else 0,
    )


def _words(by_name: Mapping[str, Values]) -> str:
    if not any(by_name.values()):
        return "No rank has written of its device yet: every 10 s one line, docs/signals.md."
    if not by_name.get(UTIL):
        return (
            "Utilisation, power and temperature are of the driver, by nvidia-ml-py; nothing is known "
            "of them here."
        )
    return ""


def _row(rank: int, by_name: Mapping[str, Values], places: Mapping[int, str]) -> Row:
    def now(name: str) -> float | None:
        line = by_name.get(name, {}).get(rank, ())
        return line[-1][1] if line else None

    def cell(text: str, soft: str = "") -> Cell:
        return Cell(text=text, soft=soft, is_number=True)

    total = now(MEMORY_TOTAL)
    return (
        Cell(text=str(rank), is_number=True, is_strong=True),
        Cell(text=places.get(rank, formats.UNKNOWN)),
        cell(_with(now(UTIL), "%")),
        cell(_size(now(MEMORY)), "" if total is None else f"of {_size(total)}"),
        cell(_with(now(POWER), "W")),
        cell(_with(now(TEMPERATURE), "°C")),
        cell(_size(now(HOST))),
        cell(_with(now(CPU), "%")),
    )


def _with(value: float | None, unit: str) -> str:
    return formats.UNKNOWN if value is None else f"{formats.number(round(value, 1))} {unit}"


def _size(value: float | None) -> str:
    return formats.UNKNOWN if value is None else formats.size(int(value))


def _maps(by_name: Mapping[str, Values], places: Mapping[int, str]) -> Iterator[HeatMap]:
    found = (
        heat_map(negative(by_name.get(UTIL, {})), DEVICE_USE, places),
        heat_map(_filled(by_name), FULL, places),
        heat_map(by_name.get(TEMPERATURE, {}), WARM, places),
    )
    yield from (each for each in found if each is not None)


def _filled(by_name: Mapping[str, Values]) -> Values:
    """Return how much of each rank's device memory is in use, 0 to 1."""
    totals = {rank: dict(line) for rank, line in by_name.get(MEMORY_TOTAL, {}).items()}
    return {
        rank: [
            (step, value / totals[rank][step])
            for step, value in line
            if totals.get(rank, {}).get(step, 0) > 0
        ]
        for rank, line in by_name.get(MEMORY, {}).items()
    }
