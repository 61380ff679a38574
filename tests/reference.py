"""Write the reference of columns in docs/ledger.md anew: `.venv/bin/python -m tests.reference`."""

from __future__ import annotations

from pathlib import Path

from tracks_dagster.ledger.facts.tables import with_reference

PAGE = Path(__file__).parents[1] / "docs" / "ledger.md"

if __name__ == "__main__":
    PAGE.write_text(with_reference(PAGE.read_text()))
