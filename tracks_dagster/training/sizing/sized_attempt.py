"""Runs a script's first steps to find what memory they take: on tensors without data, or for real.

`tracks size` starts the script as a rank is started, and ENV_SIZE names a file that says with which
config. `attempt.join` then gives a `SizedAttempt`: the script builds its model, its optimizer and its
batches as ever, runs two steps, and is ended. Nothing is restored, saved or recorded. What is counted
meanwhile: `Measuring` for real steps, `predicting` for fake ones.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch
from torch.profiler import ProfilerActivity, profile

from tracks_dagster.stores import open_store
from tracks_dagster.stores.overlay import OverlayStore
from tracks_dagster.track.bodies import FIRST, AttemptOpened, RunDeclared
from tracks_dagster.track.body_json import from_json
from tracks_dagster.track.errors import TrainingError
from tracks_dagster.track.json_text import parse_json
from tracks_dagster.track.records import Json
from tracks_dagster.training.attempt import Attempt
from tracks_dagster.training.environment import AttemptPlace, device_of, read_environment
from tracks_dagster.training.feeding import NOTHING, Feed
from tracks_dagster.training.folder_steps import Ends
from tracks_dagster.training.joining import Farewell
from tracks_dagster.training.journal import Journal
from tracks_dagster.training.launch import Launch, utc_now
from tracks_dagster.training.ranks import Ranks
from tracks_dagster.training.sampling import Batch
from tracks_dagster.training.triggers import StopSignal

STEPS = 2  # the first makes the optimizer's state, so the second is the first that has all of it
GONE = (
    "torch {} has no MemTracker as this version of tracks knows it ({}), so nothing can be predicted; "
    "--measure runs two real steps instead."
)


class Sized(SystemExit):
    """The steps were run. Ends the script, with exit code 0."""

    def __init__(self) -> None:
        super().__init__(0)


@contextmanager
def sized(request: Path) -> Iterator[SizedAttempt]:
    """Run the body as the attempt that `request` describes, and write down what memory it took.

    request: a JSON file with `declared` (a RunDeclared), `store_url`, `work` (a folder of its own),
    `report` (the file to write) and `measures` (whether the steps are real).
    """
    asked: Json = parse_json(request.read_text("utf-8"))
    device = device_of(read_environment(os.environ))
    if device.type == "cpu":
        torch.set_num_threads(read_environment(os.environ).threads)
    gauge = Measuring(device) if asked["measures"] else predicting(device)
    with StopSignal() as stop, ExitStack() as end:
        attempt = SizedAttempt(_launch(asked, device), stop, gauge)
        end.callback(attempt.close)
        with gauge:
            try:
                yield attempt
            except Sized:
                _report(Path(asked["report"]), gauge, attempt)
                raise
        _report(Path(asked["report"]), gauge, attempt)


def predicting(device: torch.device) -> Gauge:
    """Return the gauge of fake tensors; raises TrainingError where torch has what it needs no more."""
    try:
        from tracks_dagster.training.sizing.predicting import Predicting
    except (ImportError, AttributeError) as error:
        raise TrainingError(GONE.format(torch.__version__, error)) from error
    return Predicting(device)


def _launch(asked: Json, device: torch.device) -> Launch:
    """Return a launch of one rank that reads the store and writes to none."""
    declared = from_json(RunDeclared, asked["declared"])
    work = Path(asked["work"])
    store = OverlayStore(open_store(asked["store_url"], probe=False))
    place = AttemptPlace(
        store_url=store.url,
        run_id=declared.run_id,
        attempt_id=1,
        opened_seq=1,
        work=work,
        cache=Path(asked["cache"]),
    )
    opened = AttemptOpened(
        cause=FIRST,
        decided_by="tracks size",
        decision="Two steps are sized.",
        config=declared.config,
        compute=declared.compute,
        snapshot=declared.snapshot,
        resume=None,
    )
    journal = Journal(work / "journal.jsonl", store, prefix="journal/", now=utc_now)
    return Launch(
        store=store,
        place=place,
        ranks=Ranks(rank=0, world_size=1, device=device),
        launch_id="size",
        track=None,
        declared=declared,
        opened=opened,
        environment_sha256="",
        journal=journal,
        clean=lambda text: text,
    )


class SizedAttempt(Attempt):
    """An attempt of one rank that runs `STEPS` steps from the first on, and then ends the script."""

    def __init__(self, launch: Launch, stop: StopSignal, gauge: Gauge) -> None:
        super().__init__(launch, stop, Farewell())
        self._gauge = gauge
        self._ended_by: Sized | None = None
        self._by_folder = False
        self.steps_done = 0
        self.parameters: int | None = None  # None where the script registered no model

    @property
    def drained(self) -> BaseException | None:
        """What ended the steps."""
        return self._ended_by

    def steps(
        self, loader: Iterable[Batch] | None = None, *, until: int
    ) -> Iterator[tuple[int, Batch]]:
        """Yield the first steps; batches are fetched as ever, and are fake from then on."""
        if self._trained is None:
            raise TrainingError("Call a.register(…) before a.steps(…).")
        self.parameters = sum(p.numel() for p in self._trained.parameters.values())
        feed = Feed(loader, self._samplers, state=None)
        with self._gauge.real():
            feed.begin(after=0, until=until)
        for step in range(1, until + 1):
            with self._gauge.real():
                batch = feed.next(step)
            if batch is NOTHING:
                raise TrainingError(f"The loader ended before step {step} of {until}.")
            yield step, self._gauge.taken(batch)

    def report(self, step: int, *, loss: float | torch.Tensor, **metrics: float) -> None:
        """End a step; of a script that writes folders, `ends` does."""
        if not self._by_folder:
            self._end(step)

    def folder(self, *, inexact: tuple[str, ...] = ()) -> Path | None:
        """Start afresh."""
        self._by_folder = True
        return None

    def ends(self, step: int, *, last: bool | None = None) -> Ends:
        """End a step of a loop that is not ours; nothing is due."""
        self._end(step)
        return Ends(save=False, stop=False, trigger=None)

    def loops(self, still: bool) -> None:
        """Take no notice."""

    def artifact(self, path: Path | str, *, name: str | None = None) -> bool:
        """Leave it where it is."""
        return True

    def log(self, step: int, shown: Mapping[str, Any] | None = None, **named: Any) -> bool:
        """Leave it out."""
        return True

    def commit_folder(self, step: int, folder: Path | str) -> bool:
        """Commit nothing."""
        return False

    def follow_rate(self, optimizers: Iterable[Any], schedulers: Iterable[Any]) -> None:
        """Nothing was restored."""

    def evaluated(self, step: int, **metrics: float) -> None:
        """Take in nothing."""

    def evaluate_every(self, steps: int, evaluate: Callable[[], Mapping[str, float]]) -> None:
        """Evaluate nothing."""

    def save_soon(self) -> None:
        """Save nothing."""

    def converged(self) -> None:
        """Record nothing."""

    def close(self) -> None:
        """Let go of the files."""
        self._pulse.close()
        self._launch.journal.close(ship=False)

    def _end(self, step: int) -> None:
        self.steps_done = step
        if step >= STEPS:
            self._ended_by = Sized()
            raise self._ended_by


def _report(path: Path, gauge: Gauge, attempt: SizedAttempt) -> None:
    found = {
        "torch": torch.__version__,
        "device": attempt.device.type,
        "steps": attempt.steps_done,
        "parameters": attempt.parameters,
        **gauge.found(),
    }
    scratch = path.with_suffix(".part")
    scratch.write_text(json.dumps(found), encoding="utf-8")
    scratch.rename(path)


# --- real steps -----------------------------------------------------------------------------------


class Gauge(Protocol):
    """Counts the memory of what is done while it is entered."""

    def __enter__(self) -> object: ...

    def __exit__(self, *error: Any) -> None: ...

    def real(self) -> AbstractContextManager[None]:
        """Let what is made meanwhile be real and uncounted: the script's data."""
        ...

    def taken(self, batch: Batch) -> Batch:
        """Return a batch that was fetched, to be counted."""
        ...

    def found(self) -> Mapping[str, Json]:
        """Return the peak: `peak_bytes`, and by what it was taken where that is known (`by_kind`)."""
        ...


@dataclass(slots=True)
class Measuring:
    """The steps are real. On a CPU the allocator's own count, on a GPU CUDA's statistics."""

    device: torch.device
    _profile: Any = None
    _free_bytes: int | None = None

    def __enter__(self) -> None:
        if self.device.type == "cuda":
            self._free_bytes = torch.cuda.mem_get_info(self.device)[0]
            torch.cuda.reset_peak_memory_stats(self.device)
            return
        self._profile = profile(activities=[ProfilerActivity.CPU], profile_memory=True)
        self._profile.__enter__()

    def __exit__(self, *error: Any) -> None:
        if self._profile is not None:
            self._stop()

    def _stop(self) -> Any:
        profiled, self._profile = self._profile, None
        profiled.__exit__(None, None, None)
        return profiled

    def real(self) -> AbstractContextManager[None]:
        """Everything is."""
        return nullcontext()

    def taken(self, batch: Batch) -> Batch:
        """Return it as it is."""
        return batch

    def found(self) -> Mapping[str, Json]:
        """Return the peak; of a GPU also what was reserved, and taken beside that (its context)."""
        if self.device.type == "cuda":
            reserved = torch.cuda.memory_reserved(self.device)
            free, total = torch.cuda.mem_get_info(self.device)
            return {
                "peak_bytes": torch.cuda.max_memory_allocated(self.device),
                "reserved_bytes": torch.cuda.max_memory_reserved(self.device),
                "context_bytes": max(0, (self._free_bytes or total) - free - reserved),
                "device_bytes": total,
            }
        tree = self._stop().profiler.kineto_results.experimental_event_tree()
        return {"peak_bytes": max(_allocated(tree), default=0)}


def _allocated(events: Iterable[Any]) -> Iterator[int]:
    """Yield what the CPU's allocator had handed out after each allocation or release."""
    waiting = list(events)
    while waiting:
        event = waiting.pop()
        waiting += event.children
        if event.tag.name == "Allocation" and event.extra_fields.device.type == "cpu":
            yield event.extra_fields.total_allocated
