"""An end whose reason nobody knows is still described as what it was seen to be."""

from __future__ import annotations

import pytest

from tests.histories import History
from tracks_dagster.track.states.end_words import end_label, end_sentence
from tracks_dagster.track.states.lifecycle import run_status

CODE_ERROR = "The training code raised an error, which the same code most often raises again."


@pytest.mark.parametrize(
    ("reason", "root", "sentence", "label"),
    [
        (
            "unknown",
            "SIGKILL step 12",
            "It was killed by SIGKILL; by whom is not known.",
            "unknown, SIGKILL",
        ),
        (
            "unknown",
            "SIGTERM of unknown sender",
            "It ended on SIGTERM; who sent it is not known.",
            "unknown, SIGTERM of unknown sender",
        ),
        (
            "unknown",
            "signal 10 step 12",
            "It was killed by signal 10; by whom is not known.",
            "unknown, signal 10",
        ),
        (
            "unknown",
            "SIGBUS: full shared memory, or a crash,",
            "It was killed by SIGBUS; by whom is not known.",
            "unknown, SIGBUS",
        ),
        (
            "unknown",
            "exit code 3 the last line",
            "It ended with exit code 3, and left no word of why.",
            "unknown, exit code 3",
        ),
        (
            "unknown",
            "vanished",
            "The gang is gone, and left neither exit codes nor words.",
            "unknown, vanished",
        ),
        ("unknown", "cannot fork", "The evidence does not tell why the attempt ended.", "unknown"),
        (
            "code_error",
            "SystemExit: The script ended itself with exit code 3, after step 12: x",
            "The script ended itself with exit code 3, after step 12: x.",
            "code_error",
        ),
        ("code_error", "ValueError: no", CODE_ERROR, "code_error"),
        ("gpu_oom", "exit code 1", "A device ran out of memory.", "gpu_oom"),
    ],
)
def test_an_end_is_reported_as_what_it_was(
    reason: str, root: str, sentence: str, label: str
) -> None:
    history = History("r-1").declare().open().supervise().place().restore()
    history.end(reason, root_message=root, last_step=12)
    (attempt,) = history.state.attempts
    assert (end_sentence(attempt), end_label(attempt)) == (sentence, label)
    assert run_status(history.state).why.startswith(f"Attempt 1 ended as {label};")


def test_an_early_stop_is_explained_by_the_trainers_own_words() -> None:
    history = History("r-1").declare().open()
    words = "Training was stopped after step 40 of 60, which is saved."
    history.end("early_stopped", lines=("every rank's last word is early_stopped", words))
    (attempt,) = history.state.attempts
    assert end_sentence(attempt) == words


def test_an_open_attempt_has_not_ended() -> None:
    (attempt,) = History("r-1").declare().open().state.attempts
    assert (end_sentence(attempt), end_label(attempt)) == ("", "")
