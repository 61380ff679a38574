"""The table of a run's attempts, as `tracks run` and the main job print it."""

from __future__ import annotations

from rich.table import Table

from tracks_dagster.track.records import Json

_TITLES = ("attempt", "ended as", "from", "to", "kept", "lost", "device s", "continuity")
_NUMBERS = frozenset({"from", "to", "kept", "lost", "device s"})


def attempts_table(outcome: Json) -> Table:
    """Return the attempts of an outcome (`review.effects.outcome`), a row each."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for title in _TITLES:
        table.add_column(title, justify="right" if title in _NUMBERS else "left")
    for attempt in outcome["attempts"]:
        table.add_row(
            str(attempt["attempt_id"]),
            attempt["termination_reason"] or "open",
            str(attempt["resumed_from_step"] or 0),
            _or_dash(attempt["last_step"]),
            str(attempt["kept_steps"]),
            str(attempt["lost_steps"]),
            "–" if attempt["gpu_seconds"] is None else f"{attempt['gpu_seconds']:.1f}",
            _continuity(attempt["continuity"]),
        )
    return table


def _continuity(found: Json) -> str:
    if found is None:
        return "–"
    if found["agree"] is None:
        return f"not compared: {found['reason']}"
    if found["agree"]:
        return f"same losses over {found['steps_compared']} steps"
    return f"differs from step {found['first_difference']} on"


def _or_dash(value: int | None) -> str:
    return "–" if value is None else str(value)
