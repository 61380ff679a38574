"""What each search finds for the same device time, on real training; beside Optuna's and Ray Tune's.

Two spaces: the classifier of examples/tabular on a drawn table, and the GPT of examples/gpt, small, on
Python's own help, 0.5 MB of English that stays as it is. A trial trains in this process, up to 27
epochs of some steps, with the cosine of the whole trial, and goes on from its own weights or another's
as its run would. Every search has as many epochs; the best validation loss that was read by then
counts, whatever trial it is of. Studies decide as in `tracks tune`; Optuna's loop is `optimize` with
a report after each epoch.

killed: every 20 epochs of device time what trains is killed. A trial of ours goes on from its last
commit, and has lost up to an epoch, counted as a whole one. One of Optuna's has failed, and the next
one begins; what it had read counts. Needs the extra `tune`.

Of Ray Tune its ASHA is asked, by its own class; its loop is ours: four slots that report an epoch each
in turn, with the configs that our random search draws. A killed trial has failed, as with Ray's
default of no restarts. Left out, in words, where Ray Tune is not installed.
"""

from __future__ import annotations

import copy
import importlib.util
import json
import math
import sys
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from pydoc_data.topics import topics
from statistics import mean
from types import ModuleType, SimpleNamespace
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from tests.studies.played import Played, make_study
from tracks_dagster.studies.effects.searching import search_of
from tracks_dagster.studies.search import generator, space_of
from tracks_dagster.studies.space import Param
from tracks_dagster.track.bodies import MEASURED, NOT_A_NUMBER, StudyDeclared, TrialJudged
from tracks_dagster.track.records import Json, Kind
from tracks_dagster.track.states.checkpoints import CheckpointRef
from tracks_dagster.track.states.study_state import Rung

ROOT = Path(__file__).resolve().parent.parent
EXAMPLES = ROOT / "tracks_dagster" / "examples"

RUNGS = (1, 3, 9, 27)  # epochs
WHOLE = RUNGS[-1]
EPOCHS = WHOLE * WHOLE // 3  # of every search: 9 whole trials, or 81 halved ones
SEEDS = 5
READ_AT = (EPOCHS // 3, EPOCHS)
KILL_EVERY = 20  # epochs of device time

STUDIES: Mapping[str, Mapping[str, Any]] = {
    "random": {"search": {"kind": "random"}, "trials": EPOCHS, "budgets": (WHOLE,)},
    "tpe": {"search": {"kind": "tpe"}, "trials": EPOCHS, "budgets": (WHOLE,)},
    "halving": {"scheduler": {"kind": "halving"}, "trials": EPOCHS // 3, "budgets": RUNGS},
    "asha": {"scheduler": {"kind": "asha"}, "trials": EPOCHS, "budgets": RUNGS},
    "tpe_asha": {
        "search": {"kind": "tpe"},
        "scheduler": {"kind": "asha"},
        "trials": EPOCHS,
        "budgets": RUNGS,
    },
    "pbt": {
        "scheduler": {"kind": "pbt"},
        "trials": EPOCHS // WHOLE,
        "budgets": tuple(range(3, WHOLE + 1, 3)),
    },
}
OPTUNA = ("optuna_tpe", "optuna_tpe_halving")
RAY, RAY_TUNE = ("ray_asha",), "ray.tune.schedulers"
SLOTS = 4


class OutOfTime(Exception):
    """The epochs of a search are used up."""


@dataclass
class Meter:
    """Counts epochs of device time and the best that was read by then.

    best: (epochs, value) at each improvement.
    """

    is_killed: bool
    epochs: int = 0
    next_kill: int = KILL_EVERY
    best: list[tuple[int, float]] = field(default_factory=list)

    def spend(self, epochs: int) -> bool:
        """Add epochs; return whether a kill came in them; raises OutOfTime."""
        self.epochs += epochs
        if self.epochs > EPOCHS:
            raise OutOfTime
        if not self.is_killed or self.epochs < self.next_kill:
            return False
        self.next_kill += KILL_EVERY
        return True

    def read(self, value: float) -> None:
        """Note a value that was read now."""
        if math.isfinite(value) and (not self.best or value < self.best[-1][1]):
            self.best.append((self.epochs, value))

    def at(self, epochs: int) -> float:
        """Return the best by then; not a number where nothing was read."""
        return next((value for when, value in reversed(self.best) if when <= epochs), math.nan)


@dataclass
class Trained:
    """A model as far as it was trained. epochs: so many."""

    model: nn.Module
    optimizer: torch.optim.Optimizer
    epochs: int = 0


@dataclass(frozen=True)
class Line:
    """Training with one config, from step 0 or from another's weights. config: as JSON."""

    config: str
    seed: int
    source: Line | None = None
    begin: int = 0  # epochs of the source


@dataclass(frozen=True)
class Task:
    """What is trained. fixed: the rest of the config; steps: of an epoch; build: the model of a config;
    batch: of a step; held_out: what it is judged by."""

    params: Mapping[str, Param]
    fixed: Mapping[str, Json]
    steps: int
    build: Callable[[Mapping[str, Json]], nn.Module]
    batch: Callable[[int], tuple[torch.Tensor, torch.Tensor]]
    held_out: tuple[torch.Tensor, torch.Tensor]
    loss: Callable[[nn.Module, tuple[torch.Tensor, torch.Tensor]], torch.Tensor]


class World:
    """A task whose trainings are each done once, whichever searches ask for them."""

    def __init__(self, task: Task) -> None:
        self.task = task
        self._values: dict[Line, dict[int, float]] = {}
        self._newest: dict[Line, Trained] = {}
        self._saved: dict[tuple[Line, int], Trained] = {}

    def value(self, line: Line, epochs: int) -> float:
        """Return the loss on what is not trained on after so many epochs."""
        values = self._values.setdefault(line, {})
        if epochs not in values:
            trained = self._newest.get(line) or self._begun(line)
            self._newest[line] = trained
            while trained.epochs < epochs:
                value = self._train(trained, json.loads(line.config))
                values[trained.epochs] = value
                if trained.epochs % RUNGS[1] == 0 or trained.epochs == 1:
                    self._saved[line, trained.epochs] = copy.deepcopy(trained)
        return values[epochs]

    def _begun(self, line: Line) -> Trained:
        config = json.loads(line.config)
        if line.source is None:
            torch.manual_seed(line.seed)
            model = self.task.build({**self.task.fixed, **config})
            return Trained(model, _optimizer(model, config))
        trained = copy.deepcopy(self._saved[line.source, line.begin])
        for group in trained.optimizer.param_groups:
            group["weight_decay"] = config["weight_decay"]
        return trained

    def _train(self, trained: Trained, config: Mapping[str, Json]) -> float:
        task, begin = self.task, trained.epochs * self.task.steps
        torch.manual_seed(1000 + trained.epochs)  # of dropout
        for step in range(begin, begin + task.steps):
            share = 0.1 + 0.45 * (1 + math.cos(math.pi * step / (WHOLE * task.steps)))
            for group in trained.optimizer.param_groups:
                group["lr"] = config["lr"] * share
            trained.optimizer.zero_grad(set_to_none=True)
            torch.autograd.backward(task.loss(trained.model, task.batch(step)))
            nn.utils.clip_grad_norm_(trained.model.parameters(), 1.0)
            trained.optimizer.step()
        trained.epochs += 1
        trained.model.eval()
        with torch.no_grad():
            value = float(task.loss(trained.model, task.held_out))
        trained.model.train()
        return value


def _optimizer(model: nn.Module, config: Mapping[str, Json]) -> torch.optim.Optimizer:
    return torch.optim.AdamW(
        model.parameters(),
        lr=config["lr"],
        betas=(0.9, 0.95),
        weight_decay=config["weight_decay"],
    )


class Searched(Played):
    """A study whose runs are trained here, until its epochs are used up."""

    def __init__(self, study: StudyDeclared, world: World, seed: int, meter: Meter) -> None:
        super().__init__(study, lambda config, steps: None, search_of(study))
        self.world, self.seed, self.meter = world, seed, meter
        self._lines: dict[str, Line] = {}

    def judge(self, rung: Rung, *, worse_by: float = 0.0) -> None:
        """Train the run of a rung to its end."""
        body = rung.proposed
        begin, line = 0, Line(json.dumps(body.config), self.seed)
        if body.source is not None:
            begin, before = body.source.step, self._lines[body.source.run_id]
            line = (
                before
                if before.config == line.config
                else Line(line.config, self.seed, before, begin)
            )
        value = math.nan
        for epochs in range(begin + 1, body.steps + 1):
            if self.meter.spend(1):
                self.meter.spend(1)  # from the last commit once more
            value = self.world.value(line, epochs)
            self.meter.read(value)
        self._lines[body.run_id] = line
        judged = TrialJudged(
            trial=body.trial,
            rung=body.rung,
            run_id=body.run_id,
            outcome=MEASURED if math.isfinite(value) else NOT_A_NUMBER,
            value=value if math.isfinite(value) else None,
            checkpoint=CheckpointRef(body.run_id, 1, body.steps, f"runs/{body.run_id}/", "0" * 64),
            device_s=1.0,
            why="trained",
            decided_by="benchmark",
        )
        self.add(Kind.TRIAL_JUDGED, judged)


def search_ours(name: str, world: World, seed: int, *, is_killed: bool) -> Meter:
    """Return what a study of ours found by when."""
    meter = Meter(is_killed)
    study = make_study(params=world.task.params, seed=seed, slots=SLOTS, **STUDIES[name])
    with suppress(OutOfTime):
        Searched(study, world, seed, meter).play(turns_max=100_000)
    return meter


def search_optuna(name: str, world: World, seed: int, *, is_killed: bool) -> Meter:
    """Return what Optuna's own loop found by when."""
    import optuna

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    meter = Meter(is_killed)
    pruner = (
        optuna.pruners.SuccessiveHalvingPruner(min_resource=1, reduction_factor=3)
        if name.endswith("halving")
        else optuna.pruners.NopPruner()
    )
    study = optuna.create_study(sampler=optuna.samplers.TPESampler(seed=seed), pruner=pruner)

    def objective(trial: Any) -> float:
        config = {key: _suggest(trial, key, param) for key, param in world.task.params.items()}
        line, value = Line(json.dumps(config), seed), math.inf
        for epochs in range(1, WHOLE + 1):
            if meter.spend(1):
                raise RuntimeError("killed")
            value = world.value(line, epochs)
            meter.read(value)
            trial.report(value, epochs)
            if trial.should_prune():
                raise optuna.TrialPruned
        return value

    with suppress(OutOfTime):
        study.optimize(objective, n_trials=EPOCHS, catch=(RuntimeError,))
    return meter


def _suggest(trial: Any, key: str, param: Param) -> Json:
    if param.kind == "int":
        return trial.suggest_int(key, param.low, param.high)
    return trial.suggest_float(key, param.low, param.high, log=param.kind == "loguniform")


def search_ray(name: str, world: World, seed: int, *, is_killed: bool) -> Meter:
    """Return what Ray Tune's ASHA found by when."""
    ray = importlib.import_module(RAY_TUNE)
    scheduler = ray.ASHAScheduler(
        metric="loss", mode="min", max_t=WHOLE, grace_period=1, reduction_factor=RUNGS[1]
    )
    meter, declared = Meter(is_killed), make_study(params=world.task.params, seed=seed)
    space, waiting = space_of(declared), deque[Any]()
    with suppress(OutOfTime):
        for number in range(EPOCHS * SLOTS):
            line = Line(json.dumps(space.draw(generator(declared, number))), seed)
            new = SimpleNamespace(trial_id=str(number), line=line, epochs=0)
            scheduler.on_trial_add(None, new)
            waiting.append(new)
            while len(waiting) == SLOTS:
                trial = waiting.popleft()
                if meter.spend(1):
                    scheduler.on_trial_error(None, trial)
                    continue
                trial.epochs += 1
                value = world.value(trial.line, trial.epochs)
                meter.read(value)
                result = {"training_iteration": trial.epochs, "loss": value}
                if scheduler.on_trial_result(None, trial, result) == scheduler.CONTINUE:
                    waiting.append(trial)
                else:
                    scheduler.on_trial_complete(None, trial, result)
    return meter


def _has_ray() -> bool:
    """Whether Ray Tune is installed; says what is left out where it is not."""
    try:
        importlib.import_module(RAY_TUNE)
    except ImportError as error:
        print(f"{', '.join(RAY)} left out: Ray Tune cannot be imported ({error}).", file=sys.stderr)
        return False
    return True


# --- what is trained ------------------------------------------------------------------------------


def table() -> Task:
    """Return the classifier of examples/tabular on 4 000 rows of 12 columns, of which 8 count."""
    model = _module("tabular")
    drawn = torch.Generator().manual_seed(7)
    x = torch.randn(5000, 12, generator=drawn)
    teacher = nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 1))
    with torch.no_grad():
        for each in teacher.parameters():
            each.copy_(torch.randn(each.shape, generator=drawn))
        logits = 2.0 * teacher(x[:, :8]).squeeze(1)
    y = (torch.rand(5000, generator=drawn) < torch.sigmoid(logits)).float()

    def batch(step: int) -> tuple[torch.Tensor, torch.Tensor]:
        at = torch.randint(4000, (64,), generator=torch.Generator().manual_seed(step))
        return x[at], y[at]

    return Task(
        params={
            "lr": Param(kind="loguniform", low=1e-5, high=1.0),
            "weight_decay": Param(kind="loguniform", low=1e-4, high=10.0),
            "dropout": Param(kind="uniform", low=0.0, high=0.8),
            "hidden": Param(kind="int", low=4, high=128),
        },
        fixed={"layers": 2},
        steps=8,
        build=lambda config: model.Classifier(x[:4000].mean(0), x[:4000].std(0), config),
        batch=batch,
        held_out=(x[4000:], y[4000:]),
        loss=lambda net, given: functional.binary_cross_entropy_with_logits(
            net(given[0]), given[1]
        ),
    )


def gpt() -> Task:
    """Return the GPT of examples/gpt, with a context of 32 bytes, on the texts of Python's help."""
    model = _module("gpt")
    text = "".join(text for _, text in sorted(topics.items()))
    data = torch.frombuffer(bytearray(text.encode()), dtype=torch.uint8).long()
    split = len(data) * 9 // 10

    def windows(low: int, high: int, count: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
        at = torch.randint(low, high - 33, (count,), generator=torch.Generator().manual_seed(seed))
        rows = torch.stack([data[i : i + 33] for i in at.tolist()])
        return rows[:, :-1], rows[:, 1:]

    return Task(
        params={
            "lr": Param(kind="loguniform", low=1e-5, high=1.0),
            "weight_decay": Param(kind="loguniform", low=1e-4, high=10.0),
            "dropout": Param(kind="uniform", low=0.0, high=0.8),
        },
        fixed={"context": 32, "d_model": 32, "heads": 2, "layers": 2},
        steps=6,
        build=model.Gpt,
        batch=lambda step: windows(0, split, 4, step),
        held_out=windows(split, len(data), 64, 7),
        loss=lambda net, given: functional.cross_entropy(
            net(given[0]).flatten(0, 1), given[1].flatten()
        ),
    )


TASKS: Mapping[str, Callable[[], Task]] = {"table": table, "gpt": gpt}


def _module(example: str) -> ModuleType:
    """Return model.py of an example, which is a project and not a package."""
    spec = importlib.util.spec_from_file_location(
        f"{example}_model", EXAMPLES / example / "model.py"
    )
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def run(
    names: Sequence[str] = (*STUDIES, *OPTUNA, *RAY),
    tasks: Sequence[str] = tuple(TASKS),
    seeds: int = SEEDS,
) -> dict[str, float]:
    """Return the best loss by READ_AT epochs, the mean of the seeds; of the last also the worst."""
    torch.set_num_threads(1)
    if set(names) & set(RAY) and not _has_ray():
        names = [name for name in names if name not in RAY]
    return {key: value for of in tasks for key, value in _figures(of, names, seeds)}


def _figures(of: str, names: Sequence[str], seeds: int) -> Iterator[tuple[str, float]]:
    found: dict[str, list[Meter]] = {}
    for seed in range(seeds):
        world = World(TASKS[of]())
        for name in names:
            search = search_optuna if name in OPTUNA else search_ray if name in RAY else search_ours
            for is_killed in (False, True):
                label = f"{of}_{name}{'_killed' if is_killed else ''}"
                meter = search(name, world, seed, is_killed=is_killed)
                found.setdefault(label, []).append(meter)
    for label, meters in found.items():
        for epochs in READ_AT:
            yield f"{label}_by_{epochs}", mean(each.at(epochs) for each in meters)
        yield f"{label}_worst", max(each.at(EPOCHS) for each in meters)
