"""A training script of a person's own: stored with the run that it is for, named by its hash."""

from __future__ import annotations

from tracks_dagster.track.errors import InvalidInput
from tracks_dagster.track.records import sha256_hex

FAMILY = "family"
TRAINER_BYTES_MAX = 1024 * 1024


def trainer_name(run_id: str, source: bytes | None) -> str:
    """Return "family", or the key under which the script of one's own is stored.

    Raises InvalidInput for one that is too large or no Python.
    """
    if source is None:
        return FAMILY
    if len(source) > TRAINER_BYTES_MAX:
        raise InvalidInput(
            f"The trainer has {len(source)} bytes; a script of at most {TRAINER_BYTES_MAX} is "
            "stored with the run, the rest belongs in an installed package."
        )
    try:
        compile(source, "trainer", "exec")
    except (SyntaxError, ValueError) as error:
        raise InvalidInput(f"The trainer is no Python that runs here: {error}.") from error
    except (RecursionError, MemoryError) as error:  # how Python says that it is nested too deeply
        raise InvalidInput("The trainer is nested too deeply for Python to read.") from error
    return f"runs/{run_id}/trainer/{sha256_hex(source)}.py"
