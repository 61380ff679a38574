"""The parts of an explanation's text, by their labels, and a text without one of them."""

from __future__ import annotations

from tracks_dagster.review.explain.text import LABEL_WIDTH, MARGIN


def parts_of(text: str) -> dict[str, list[str]]:
    """Return the lines of each part by its label."""
    parts: dict[str, list[str]] = {}
    label = ""
    for line in text.splitlines():
        if not line.startswith(MARGIN):
            continue
        if not line.startswith(MARGIN + " "):
            label = line[len(MARGIN) : len(MARGIN) + LABEL_WIDTH].strip()
        elif not label:
            continue  # the rest of a head that was wrapped
        parts.setdefault(label, []).append(line[len(MARGIN) + LABEL_WIDTH :])
    return parts


def without(text: str, label: str) -> str:
    """Return the text without one of its parts."""
    kept, now = [], ""
    for line in text.splitlines():
        if line.startswith(MARGIN):
            now = line[len(MARGIN) : len(MARGIN) + LABEL_WIDTH].strip() or now
        if now != label:
            kept.append(line)
    return "\n".join(kept)
