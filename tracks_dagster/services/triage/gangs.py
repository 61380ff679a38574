"""Ask the launchers for gangs, within a bounded time: a lost cluster must not hold the answer up.

A launcher of this machine is asked for all it knows, which only reads; any other one for a glance,
because observing a gang there begins to keep what happens to it.
"""

from __future__ import annotations

import threading

from tracks_dagster.core.errors import GangError, SettingsError, TracksError
from tracks_dagster.core.names import LOCAL
from tracks_dagster.core.ports import GangReport, LauncherOf
from tracks_dagster.core.redact import Redact

FIRST_ANSWER_S_MAX = (
    5.0  # of a launcher that asks others; what it was told then serves all its gangs
)


class Gangs:
    """Reports of gangs, or in words why there is none. A launcher that did not answer is not asked
    again."""

    def __init__(self, launcher_of: LauncherOf, *, clean: Redact) -> None:
        self._launcher_of = launcher_of
        self._clean = clean
        self._lost: dict[str, str] = {}
        self._answered = {LOCAL}

    def look(
        self, launcher: str, run_id: str, attempt_id: int
    ) -> tuple[GangReport | None, str | None]:
        """Return the report on a gang, and None; or None, and why."""
        if launcher in self._lost:
            return None, self._lost[launcher]
        if launcher in self._answered:
            return self._ask(launcher, run_id, attempt_id)
        answer: list[tuple[GangReport | None, str | None]] = []
        thread = threading.Thread(
            target=lambda: answer.append(self._ask(launcher, run_id, attempt_id)), daemon=True
        )
        thread.start()
        thread.join(FIRST_ANSWER_S_MAX)
        if not answer:
            why = f"launcher {launcher} did not answer within {FIRST_ANSWER_S_MAX:g} s"
            self._lost[launcher] = why
            return None, why
        report, problem = answer[0]
        if report is None:
            self._lost[launcher] = problem or ""
        self._answered.add(launcher)
        return report, problem

    def _ask(
        self, launcher: str, run_id: str, attempt_id: int
    ) -> tuple[GangReport | None, str | None]:
        try:
            gangs = self._launcher_of(launcher)
            if launcher == LOCAL:
                return gangs.observe(run_id, attempt_id), None
            return gangs.glance(run_id, attempt_id), None
        except (GangError, SettingsError, TracksError) as error:
            return None, self._clean(str(error))
