"""A home with runs that train, one that is over and one that was refused; and who looks at it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.histories import History
from tests.live_runs import LiveRun
from tests.visitors import Visitor
from tracks_dagster.settings import Settings
from tracks_dagster.track.bodies import SkippedGates
from tracks_dagster.wings.watch.board.difference import UNITS
from tracks_dagster.wings.watch.board.effects.serving import guarded
from tracks_dagster.wings.watch.board.effects.sources import Sources
from tracks_dagster.wiring import build

LIVE, SECOND = "live-run", "second-run"
OVER, REFUSED = "over-run", "refused-run"
PRICES = "currency: EUR\nper_device_hour: {NVIDIA H100: 3.0, cpu: 0.1}\n"


@dataclass(frozen=True, slots=True, kw_only=True)
class Home:
    """A home on disk. live, second: runs that train."""

    settings: Settings
    live: LiveRun
    second: LiveRun

    def visitor(self) -> Visitor:
        """Return one who opens the board of this home, which has read nothing yet."""
        return Visitor(guarded(Sources(self.settings)))


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Home:
    """A home whose ledger has taken in every run."""
    return make_home(tmp_path_factory.mktemp("board") / "home")


def make_home(folder: Path) -> Home:
    """Make the home in `folder`."""
    settings = Settings.from_environment({"TRACKS_HOME": str(folder)})
    app = build(settings)
    (folder / "prices.yaml").write_text(PRICES)
    now = datetime.now(UTC)
    live = LiveRun(app.store, LIVE, now=now).write()
    second = LiveRun(app.store, SECOND, now=now, ranks=1, steps=150).write()
    begin = now - timedelta(minutes=30)
    skipped = SkippedGates(gates=("canary",), by="ann", why="A demo in an hour.")
    over = History(OVER, begin=begin).declare(intent="Be over.", skipped=skipped)
    over.open().supervise().place().restore().commit(40).end("completed", last_step=40).finish()
    over.write_to(app.store)
    refused = History(REFUSED, begin=begin).declare(intent="Be refused.", model_family="tabular")
    refused.open().supervise().place().end("code_error").refuse()
    refused.write_to(app.store)
    app.projector.scan()
    return Home(settings=settings, live=live, second=second)


def applied(pieces: Sequence[Any], before: str) -> str:
    """Return the page that `difference` made these pieces of, as board.js does."""
    lines = before.split("\n")
    found: list[str] = []
    for piece in pieces:
        match piece:
            case str():
                found.append(piece)
            case [first, count]:
                found += lines[first : first + count]
            case [line, head, middle, tail]:
                old = lines[line].encode(UNITS)
                begin, end = old[: 2 * head], old[len(old) - 2 * tail :]
                found.append(f"{begin.decode(UNITS)}{middle}{end.decode(UNITS)}")
    return "\n".join(found)
