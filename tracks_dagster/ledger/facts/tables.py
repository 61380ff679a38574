"""Which facts are the columns of which table of the ledger."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tracks_dagster.ledger.facts.attempt import ATTEMPT
from tracks_dagster.ledger.facts.fact import Fact

FACTS: Mapping[str, Sequence[Fact[Any]]] = {"training_attempts": ATTEMPT}
