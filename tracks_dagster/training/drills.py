"""Plays the faults that a run was declared with, at the steps it names (see `core.drills`).

Every rank and every attempt knows them from the track. A preemption is played by whoever plays the
control plane, on request, and once a run; an error is raised in every attempt that gets there.
"""

from __future__ import annotations

import time
from functools import partial
from typing import Any

import torch
from torch import nn

from tracks_dagster.adapters.processes import write_json
from tracks_dagster.core.bodies import Drill, Note
from tracks_dagster.core.errors import TrainingError
from tracks_dagster.core.records import Kind
from tracks_dagster.training.launch import Launch
from tracks_dagster.training.stop_signal import StopSignal

SIGNAL_S_MAX = 60.0  # how long a preempted rank waits to be signalled
POLL_S = 0.02


class Drills:
    """The drills of one rank. `begin` is told of every step; step 0 is before the first."""

    def __init__(self, launch: Launch) -> None:
        self._launch = launch
        self._drills = launch.declared.drills
        self._step = 0

    def arm(self, model: nn.Module) -> None:
        """Let the model's forward run out of memory where a drill says so."""
        if any(drill.kind == "gpu_oom" for drill in self._drills):
            model.register_forward_pre_hook(self._before_forward)

    def begin(self, step: int) -> None:
        """Begin `step`; raises where a code_error drill says so."""
        self._step = step
        if any(drill.kind == "code_error" and drill.step == step for drill in self._drills):
            raise RuntimeError(f"drill code_error@{step}: the training code fails on purpose")

    def preempt_at(self, step: int) -> bool:
        """Whether a drill preempts the gang after `step`, if none did before."""
        return any(drill.kind == "preempt" and drill.step == step for drill in self._drills)

    def play_preemptions(self, step: int, stop: StopSignal) -> bool:
        """Have the gang preempted if a drill says so and none did before; True when it was.

        Collective. Returns once SIGTERM came, or not at all; raises TrainingError after a minute.
        """
        due = [
            (index, drill)
            for index, drill in enumerate(self._drills)
            if drill.kind == "preempt" and drill.step == step
        ]
        fired = [
            self._launch.ranks.from_first(partial(self._request, index, drill))
            for index, drill in due
        ]
        if any(fired):
            _wait_for(stop)
        return any(fired)

    def _request(self, index: int, drill: Drill) -> bool:
        """Ask the gang's parent for a preemption, once a run; False when an earlier attempt did.

        Raises Fenced. The note stands in the track before the drill fires, whatever dies meanwhile.
        """
        self._launch.own_track.refresh()  # a fenced gang must not use up the next one's drill
        track = self._launch.whole_track()
        for record in track.refresh():
            if record.kind is Kind.NOTE and record.body["data"].get("drill") == index:
                return False
        text = f"Drill preempt@{drill.step} fires with {drill.grace_s:g} s of grace."
        note = Note(by="drill", text=text, data={"drill": index})
        track.note(self._launch.draft(Kind.NOTE, note))
        folder = self._launch.place.work / "drill"
        folder.mkdir(parents=True, exist_ok=True)
        write_json(folder / "preempt.json", {"grace_s": drill.grace_s})
        return True

    def _before_forward(self, module: nn.Module, arguments: Any) -> None:
        micro_batch = self._launch.opened.config.get("micro_batch", 0)
        for drill in self._drills:
            limit = drill.micro_batch_max
            if drill.kind != "gpu_oom" or drill.step != self._step or limit is None:
                continue
            if micro_batch > limit:
                raise torch.OutOfMemoryError(
                    f"drill gpu_oom@{drill.step}: CUDA out of memory, as played: the micro-batch "
                    f"of {micro_batch} is above {limit}"
                )


def _wait_for(stop: StopSignal) -> None:
    deadline = time.monotonic() + SIGNAL_S_MAX
    while not stop.received:
        if time.monotonic() > deadline:
            raise TrainingError(
                f"A preemption drill asked for a signal and none came within {SIGNAL_S_MAX:g} s; "
                "only a gang's parent plays it: declare the drill with `tracks run`."
            )
        time.sleep(POLL_S)
