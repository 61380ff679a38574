"""What every source of text yields."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Document:
    """One text; `name` is the same on every machine."""

    name: str
    text: str
