"""Write the report of a run as a file that the UI, a mail or a colleague can be pointed to.

    written = write_report(tracks, run_id, settings.reports / f"{run_id}.html", around)
    MetadataValue.path(str(written.path))   # in assets/; `report_anchor` for one attempt

The file is a picture of the run as it stands now; it is replaced as a whole, never half.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from tracks_dagster.ledger.effects.tracks import Tracks
from tracks_dagster.review.effects.explain.reading import Break
from tracks_dagster.review.effects.explain.run import NOTHING_AROUND, Around, read_to_explain
from tracks_dagster.review.effects.report.page import render_told, report_anchor
from tracks_dagster.track.errors import InvalidInput
from tracks_dagster.track.text.private_files import file_mode


@dataclass(frozen=True, slots=True, kw_only=True)
class Written:
    """A report that was written. link: a file URL, of the attempt's place in it if one was named."""

    path: Path
    link: str
    broken: Break | None


def write_report(
    tracks: Tracks,
    run_id: str,
    file: Path,
    around: Around = NOTHING_AROUND,
    *,
    attempt_id: int | None = None,
) -> Written:
    """Write the report of a run as it stands now, that of `attempt_id` unfolded.

    Safe from two processes: the last one's file stays. Raises as `read_to_explain`, and InvalidInput
    where the file cannot be written.
    """
    told = read_to_explain(tracks, run_id, around)
    html = render_told(tracks, told, around, attempt_id=attempt_id)
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        unfinished = file.with_name(f".{file.name}.{os.getpid()}")
        with open(unfinished, "w", encoding="utf-8", opener=_create) as out:
            out.write(html)
        unfinished.replace(file)
    except (OSError, ValueError) as error:  # ValueError: a name that no file can have
        why = getattr(error, "strerror", None) or error
        raise InvalidInput(
            f"Cannot write the report {file}: {why}. Name another file: `tracks report {run_id} "
            "--out FILE`."
        ) from error
    anchor = "" if attempt_id is None else f"#{report_anchor(attempt_id)}"
    return Written(path=file, link=f"{file.absolute().as_uri()}{anchor}", broken=told.read.broken)


def _create(path: str, flags: int) -> int:
    folder = Path(path).absolute().parent
    return os.open(path, flags, file_mode(f.stat().st_mode for f in (folder, *folder.parents)))
