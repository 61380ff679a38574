"""Imports of Dagster's servers without what only colours a terminal: 7 MB less in each process."""

import sys
from contextlib import suppress
from importlib import import_module

COLOURING = ("pygments", "rich")
ASKING = ("mako.exceptions", "structlog.dev")  # they load it where it is, and work without it


def import_plain() -> None:
    """Import those that ask as if there was no colouring. Anyone who imports it later still gets it."""
    hidden = [name for name in COLOURING if name not in sys.modules]
    sys.modules.update(dict.fromkeys(hidden))  # type: ignore[arg-type]  # None: not to be found
    try:
        for name in ASKING:
            with suppress(ImportError):
                import_module(name)
    finally:
        for name in hidden:
            del sys.modules[name]
