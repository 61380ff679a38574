"""A thread whose end would go unnoticed: an error that nobody foresaw is told, and it goes on."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

AGAIN_S = 2.0  # after such an error
_log = logging.getLogger(__name__)


class LastingThread(threading.Thread):
    """Runs `work` until that returns, or until `stop` is set and it fails. troubled: told of errors."""

    def __init__(
        self,
        work: Callable[[], None],
        name: str,
        stop: threading.Event,
        troubled: Callable[[str], None],
    ) -> None:
        super().__init__(name=name, daemon=True)
        self._work, self._until, self._troubled = work, stop, troubled

    def run(self) -> None:
        """Work; called by `start`."""
        while True:
            try:
                return self._work()
            except Exception as error:  # noqa: BLE001 - a thread's edge
                if self._until.is_set():
                    return None  # what was read was cut off in the middle
                _log.exception("Thread %s goes on after an error", self.name)
                self._troubled(f"{type(error).__name__}: {error}")
            self._until.wait(AGAIN_S)
