"""The colour of a run: its own on every page, by its id. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from tracks_dagster.track.records import sha256_hex

COLOURS = 16  # classes r0 to r15 of board.css, apart in hue and every second in lightness too
DASHES = 4  # classes d1 to d3 beside a plain line


def colour_of(run_id: str) -> str:
    """Return the class of a run's colour, which depends on nothing but its id."""
    return f"r{int(sha256_hex(run_id.encode())[:8], 16) % COLOURS}"


def looks_of(run_ids: Sequence[str]) -> dict[str, str]:
    """Return the classes of each run's line: its colour, and a dash that tells it from runs of the
    page that have the same one, in the order of their ids.

    Where DASHES runs have a colour already, the next one has a colour and a dash that are free: up to
    COLOURS * DASHES runs all differ.
    """
    found: dict[str, str] = {}
    more: list[str] = []
    for run_id in sorted(set(run_ids)):
        looks = [_look(colour_of(run_id), dash) for dash in range(DASHES)]
        free = next((each for each in looks if each not in found.values()), None)
        if free is None:
            more.append(run_id)
        else:
            found[run_id] = free
    every = [_look(f"r{colour}", dash) for dash in range(DASHES) for colour in range(COLOURS)]
    others = [each for each in every if each not in found.values()] or every
    found |= {run_id: others[at % len(others)] for at, run_id in enumerate(more)}
    return {run_id: found[run_id] for run_id in run_ids}


def _look(colour: str, dash: int) -> str:
    return f"{colour} d{dash}" if dash else colour
