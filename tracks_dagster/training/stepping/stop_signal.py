"""Signals as wishes that a training loop can look at: SIGTERM to stop, SIGUSR1 to save."""

from __future__ import annotations

import signal
import threading
from types import FrameType, TracebackType
from typing import Any


class StopSignal:
    """While its `with` lasts, SIGTERM sets `received` and SIGUSR1 `save_asked`; neither ends it.

    SIGUSR1 ends no process afterwards either: who asks for a save cannot know that the last step is
    done. Only the main thread may handle signals: elsewhere both stay False.
    """

    def __init__(self) -> None:
        self.received = False
        self.save_asked = False
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> StopSignal:
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGTERM, signal.SIGUSR1):
                self._before[number] = signal.signal(number, self._receive)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for number, before in self._before.items():
            is_deadly = number == signal.SIGUSR1 and before == signal.SIG_DFL
            signal.signal(number, signal.SIG_IGN if is_deadly else before)

    def _receive(self, number: int, frame: FrameType | None) -> None:
        if number == signal.SIGTERM:
            self.received = True
        else:
            self.save_asked = True
