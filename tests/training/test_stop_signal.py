"""SIGTERM becomes a flag, on the main thread only, and only while asked for."""

from __future__ import annotations

import os
import signal
import threading

from tracks_dagster.training.triggers import StopSignal


def test_sigterm_sets_a_flag_and_the_handler_before_comes_back() -> None:
    before = signal.getsignal(signal.SIGTERM)
    with StopSignal() as stop:
        assert not stop.received
        os.kill(os.getpid(), signal.SIGTERM)
        assert stop.received
    assert signal.getsignal(signal.SIGTERM) is before


def test_a_save_that_is_asked_for_too_late_ends_no_process() -> None:
    before = signal.getsignal(signal.SIGUSR1)
    try:
        signal.signal(signal.SIGUSR1, signal.SIG_DFL)
        with StopSignal() as stop:
            os.kill(os.getpid(), signal.SIGUSR1)
            assert stop.save_asked
        os.kill(os.getpid(), signal.SIGUSR1)
    finally:
        signal.signal(signal.SIGUSR1, before)


def test_another_thread_installs_no_handler() -> None:
    before = signal.getsignal(signal.SIGTERM)
    seen: list[object] = []

    def join() -> None:
        with StopSignal() as stop:
            seen.append((stop.received, signal.getsignal(signal.SIGTERM)))

    thread = threading.Thread(target=join)
    thread.start()
    thread.join()
    assert seen == [(False, before)]
