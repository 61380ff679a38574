"""Ask the launchers for gangs, within a bounded time: a lost cluster must not hold the answer up.

A launcher of this machine is asked for all it knows, which only reads; any other one for a glance,
because observing a gang there begins to keep what happens to it.
"""

from __future__ import annotations

import threading
import time

from tracks_dagster.attempts.ports import GangReport, LauncherOf
from tracks_dagster.track.errors import GangError, SettingsError, TracksError
from tracks_dagster.track.names import LOCAL
from tracks_dagster.track.text.redact import Redact

ANSWERS_S_MAX = (
    5.0  # of a launcher that asks others, until it answers once: that serves all its gangs
)


class Gangs:
    """Reports of gangs, or in words why there is none: an error may be of one gang alone, so the next
    is asked for all the same. A launcher whose errors took `ANSWERS_S_MAX` is not asked again."""

    def __init__(self, launcher_of: LauncherOf, *, clean: Redact) -> None:
        self._launcher_of = launcher_of
        self._clean = clean
        self._lost: dict[str, str] = {}
        self._answered = {LOCAL}
        self._spent_s: dict[str, float] = {}  # on errors, by launcher
        self._errors: dict[str, str] = {}  # the last one, by launcher

    def look(
        self, launcher: str, run_id: str, attempt_id: int
    ) -> tuple[GangReport | None, str | None]:
        """Return the report on a gang, and None; or None, and why."""
        if launcher in self._lost:
            return None, self._lost[launcher]
        if launcher in self._answered:
            return self._ask(launcher, run_id, attempt_id)
        answer: list[tuple[GangReport | None, str | None]] = []
        began_s, left_s = time.monotonic(), ANSWERS_S_MAX - self._spent_s.get(launcher, 0.0)
        if left_s <= 0:
            return None, self._give_up(launcher)
        thread = threading.Thread(
            target=lambda: answer.append(self._ask(launcher, run_id, attempt_id)), daemon=True
        )
        thread.start()
        thread.join(left_s)
        if not answer:
            return None, self._give_up(launcher)
        report, problem = answer[0]
        if problem is not None:
            self._errors[launcher] = problem
            self._spent_s[launcher] = ANSWERS_S_MAX - left_s + time.monotonic() - began_s
        else:
            self._answered.add(launcher)
        return report, problem

    def _give_up(self, launcher: str) -> str:
        """Ask it no more, and return why."""
        why = f"launcher {launcher} did not answer within {ANSWERS_S_MAX:g} s"
        if (error := self._errors.get(launcher)) is not None:
            why = (
                f"launcher {launcher} gave nothing but errors in {ANSWERS_S_MAX:g} s, the last one: "
                f"{error}"
            )
        self._lost[launcher] = why
        return why

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
