"""What `tracks fsck` reports: something that is not as the record says."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One thing that does not hold. where: a key, a track or a table of the ledger.

    meaning: one or two sentences on what it means; to_do: what a person does about it.
    """

    where: str
    meaning: str
    to_do: str
