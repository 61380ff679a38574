"""Every row of the table in docs/trainer.md: what people train with resumes as the table says.

A row that is exact is trained undisturbed and cut in two, with losses and weights equal to the bit.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.optim import lr_scheduler as schedules
from torch.optim.swa_utils import SWALR, AveragedModel, get_ema_multi_avg_fn, update_bn
from torch.utils.data import DataLoader, IterableDataset, Sampler, TensorDataset

from tests.training.gangs import TrainingRun
from tracks_dagster.track.errors import TrainingError
from tracks_dagster.training.attempt import Attempt

PAGE = Path(__file__).parents[2] / "docs" / "trainer.md"
UNTIL, CUT = 9, 4
X = torch.randn(48, 6, generator=torch.Generator().manual_seed(1))
DATA = TensorDataset(X, X.sum(1, keepdim=True))
Seen = list[list[float]]  # of each step: its loss, and what else has to be equal
Body = Callable[[Attempt, int], Seen]


def net() -> nn.Sequential:
    return nn.Sequential(
        nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Dropout(0.2), nn.Linear(8, 1)
    )


def numbers(model: nn.Module) -> list[float]:
    return [float(each.detach().double().sum()) for each in model.state_dict().values()]


def plain(
    build: Callable[[nn.Module], Any],
    schedule: Callable[[Any], Any] = lambda optimizer: None,
    *,
    make: Callable[[], nn.Module] = net,
    amp: bool = False,
) -> Body:
    """A loop with one model, one optimizer, and perhaps a schedule."""

    def body(a: Attempt, until: int) -> Seen:
        model = make()
        optimizer = build(model)
        scheduler = schedule(optimizer)
        scaler = torch.amp.GradScaler("cpu", init_scale=4.0, growth_interval=3) if amp else None
        a.register(model=model, optimizer=optimizer, scheduler=scheduler, scaler=scaler)
        loader = DataLoader(DATA, batch_sampler=a.sampler(48, seed=3, global_batch=8))
        seen: Seen = []
        for step, (x, y) in a.steps(loader, until=until):

            def closure(x: torch.Tensor = x, y: torch.Tensor = y) -> torch.Tensor:
                optimizer.zero_grad()
                with torch.autocast("cpu", torch.bfloat16, enabled=amp):
                    loss = (model(x).float() - y).square().mean()
                (scaler.scale(loss) if scaler else loss).backward()
                return loss

            if isinstance(optimizer, torch.optim.LBFGS):
                loss = optimizer.step(closure)
            elif scaler:
                loss = closure()
                scaler.step(optimizer)
                scaler.update()
            else:
                loss = closure()
                optimizer.step()
            if isinstance(scheduler, schedules.ReduceLROnPlateau):
                scheduler.step(float(loss.detach()))
            elif scheduler is not None:
                scheduler.step()
            rates = [float(group["lr"]) for group in optimizer.param_groups]
            seen.append([float(loss.detach()), *rates, *numbers(model)])
            a.report(step, loss=loss.detach())
        return seen

    return body


def sparse(a: Attempt, until: int) -> Seen:
    words, head = nn.Embedding(20, 4, sparse=True), nn.Linear(4, 1)
    ours = torch.optim.SparseAdam(words.parameters()), torch.optim.AdamW(head.parameters())
    a.register(model=nn.ModuleList([words, head]), optimizer=ours[0], dense=ours[1])
    data = TensorDataset(torch.arange(48) % 20)
    loader = DataLoader(data, batch_sampler=a.sampler(48, seed=3, global_batch=8))
    seen: Seen = []
    for step, (ids,) in a.steps(loader, until=until):
        loss = (head(words(ids)) - 1).square().mean()
        for each in ours:
            each.zero_grad()
        loss.backward()
        for each in ours:
            each.step()
        seen.append([loss.item(), *numbers(words), *numbers(head)])
        a.report(step, loss=loss.detach())
    return seen


class ScheduleFree(torch.optim.Optimizer):
    """SGD without a schedule: it trains at one point and is evaluated at another, x."""

    def __init__(self, parameters: Iterable[nn.Parameter], lr: float) -> None:
        super().__init__(parameters, {"lr": lr, "k": 0, "train_mode": True})

    def _move(self, *, to_x: bool) -> None:
        for group in self.param_groups:
            if group["train_mode"] != to_x:
                continue
            group["train_mode"] = not to_x
            for p in group["params"]:
                if "z" in self.state[p]:
                    p.data.lerp_(self.state[p]["z"], 1 - 1 / 0.9 if to_x else 0.1)

    def eval(self) -> None:
        self._move(to_x=True)

    def train(self) -> None:
        self._move(to_x=False)

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            group["k"] += 1
            for p in group["params"]:
                z = self.state[p].setdefault("z", p.detach().clone())
                p.lerp_(z, 1 / (group["k"] + 1)).sub_(p.grad, alpha=0.1 * group["lr"])
                z.sub_(p.grad, alpha=group["lr"])


def averaged(build: Callable[[nn.Module], AveragedModel]) -> Body:
    def body(a: Attempt, until: int) -> Seen:
        model = net()
        average = build(model)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
        scheduler = SWALR(optimizer, swa_lr=0.01, anneal_epochs=3)
        a.register(model=model, optimizer=optimizer, scheduler=scheduler, average=average)
        loader = DataLoader(DATA, batch_sampler=a.sampler(48, seed=3, global_batch=8))
        seen: Seen = []
        for step, (x, y) in a.steps(loader, until=until):
            loss = (model(x) - y).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            scheduler.step()
            average.update_parameters(model)
            seen.append([loss.item(), *numbers(model), *numbers(average)])
            a.report(step, loss=loss.detach())
            with a.evaluating():
                update_bn([x], average)
        return seen

    return body


class Weighted(Sampler[int]):
    def __init__(self) -> None:
        self.generator = torch.Generator().manual_seed(3)

    def __iter__(self) -> Iterator[int]:
        while True:
            yield int(torch.multinomial(torch.arange(48.0), 1, generator=self.generator))

    def state_dict(self) -> dict[str, Any]:
        return {"generator": self.generator.get_state()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.generator.set_state(state["generator"])


class Stream(IterableDataset[torch.Tensor]):
    """Documents packed into rows of eight tokens; what is left of one begins the next row."""

    def __init__(self) -> None:
        self.document, self.left = 0, [0][:0]

    def __iter__(self) -> Iterator[torch.Tensor]:
        while True:
            while len(self.left) < 8:
                self.left = [*self.left, *range(self.document, self.document + 5)]
                self.document += 1
            row, self.left = self.left[:8], self.left[8:]
            yield torch.tensor(row, dtype=torch.float32)

    def state_dict(self) -> dict[str, Any]:
        return {"document": self.document, "left": self.left}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.document, self.left = state["document"], state["left"]


def fed(build: Callable[[Attempt], tuple[Any, dict[str, Any]]]) -> Body:
    """A loop whose batches are what matters."""

    def body(a: Attempt, until: int) -> Seen:
        model = nn.Linear(1, 1)
        loader, named = build(a)
        a.register(model=model, optimizer=torch.optim.SGD(model.parameters(), lr=0.1), **named)
        seen: Seen = []
        for step, batch in a.steps(loader, until=until):
            first = batch[0] if isinstance(batch, list) else batch
            seen.append(first.flatten().tolist())
            a.report(step, loss=1.0)
        return seen

    return body


def weighted(a: Attempt) -> tuple[Any, dict[str, Any]]:
    order = Weighted()
    return DataLoader(DATA, batch_size=4, sampler=order), {"per_rank": {"order": order}}


def stream(a: Attempt) -> tuple[Any, dict[str, Any]]:
    rows = Stream()
    return DataLoader(rows, batch_size=2), {"per_rank": {"rows": rows}}


def with_workers(a: Attempt) -> tuple[Any, dict[str, Any]]:
    order = Weighted()
    return DataLoader(DATA, batch_size=4, sampler=order, num_workers=2), {"per_rank": {"o": order}}


def generated(a: Attempt) -> tuple[Any, dict[str, Any]]:
    return (torch.tensor([float(i)]) for i in range(6)), {}


def adapted(a: Attempt, until: int) -> Seen:
    """LoRA: a frozen base, two small trained matrices beside each layer."""

    class Adapted(nn.Module):
        def __init__(self, base: nn.Linear) -> None:
            super().__init__()
            self.base = base.requires_grad_(False)
            self.down = nn.Parameter(torch.randn(2, base.in_features) / 4)
            self.up = nn.Parameter(torch.zeros(base.out_features, 2))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.base(x) + x @ self.down.t() @ self.up.t()

    def make() -> nn.Module:
        return nn.Sequential(Adapted(nn.Linear(6, 8)), nn.Tanh(), Adapted(nn.Linear(8, 1)))

    def build(model: nn.Module) -> torch.optim.Optimizer:
        return torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=0.05)

    return plain(build, make=make)(a, until)


def adversarial(a: Attempt, until: int) -> Seen:
    g, d = nn.Linear(6, 6), nn.Sequential(nn.Linear(6, 8), nn.LeakyReLU(), nn.Linear(8, 1))
    ours = torch.optim.Adam(g.parameters(), lr=0.01), torch.optim.Adam(d.parameters(), lr=0.02)
    a.register(model=g, optimizer=ours[0], discriminator=d, optimizer_d=ours[1])
    loader = DataLoader(DATA, batch_sampler=a.sampler(48, seed=3, global_batch=8))
    seen: Seen = []
    for step, (x, _) in a.steps(loader, until=until):
        fake = g(torch.randn(8, 6))
        real = (1 - d(x)).square().mean() + d(fake.detach()).square().mean()
        ours[1].zero_grad()
        real.backward()
        ours[1].step()
        loss = (1 - d(fake)).square().mean()
        ours[0].zero_grad()
        loss.backward()
        ours[0].step()
        seen.append([loss.item(), *numbers(g), *numbers(d)])
        a.report(step, loss=loss.detach())
    return seen


class Replay:
    """Transitions of an environment of one's own, with the generator that picks from them."""

    def __init__(self) -> None:
        self.rows: deque[tuple[np.ndarray[Any, Any], int, float]] = deque(maxlen=200)
        self.draws = np.random.default_rng(3)

    def state_dict(self) -> dict[str, Any]:
        return {"rows": self.rows, "draws": self.draws.bit_generator.state}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.rows, self.draws.bit_generator.state = state["rows"], state["draws"]


def reinforced(a: Attempt, until: int) -> Seen:
    model, replay = nn.Linear(4, 2), Replay()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
    a.register(model=model, optimizer=optimizer, replay=replay)
    seen: Seen = []
    for step, _ in a.steps(until=until):
        for _ in range(40):
            state = replay.draws.standard_normal(4, dtype=np.float32)
            replay.rows.append((state, int(replay.draws.integers(2)), float(state.sum())))
        picked = [replay.rows[i] for i in replay.draws.integers(len(replay.rows), size=8)]
        values = model(torch.from_numpy(np.stack([row[0] for row in picked])))
        chosen = values[torch.arange(8), torch.tensor([row[1] for row in picked])]
        loss = (chosen - torch.tensor([row[2] for row in picked])).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        seen.append([loss.item(), *numbers(model)])
        a.report(step, loss=loss.detach())
    return seen


def compiled_blocks() -> nn.Module:
    model = net()
    model[0] = torch.compile(model[0], backend="eager")  # type: ignore[call-overload]
    return model


def sgd(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, nesterov=True)


def optimizer(kind: str, **options: Any) -> Body:
    return plain(lambda model: getattr(torch.optim, kind)(model.parameters(), **options))


def matrices_by_muon(a: Attempt, until: int) -> Seen:
    def build(model: nn.Module) -> torch.optim.Optimizer:
        return torch.optim.Muon([p for p in model.parameters() if p.ndim == 2], lr=0.01)

    def make() -> nn.Module:
        return nn.Sequential(nn.Linear(6, 8, bias=False), nn.Linear(8, 1, bias=False))

    return plain(build, make=make)(a, until)


EXACT: dict[str, dict[str, Body]] = {
    "optimizers of torch": {
        "sgd": plain(sgd),
        "adamw": optimizer("AdamW", lr=0.02),
        "adam, amsgrad, fused": optimizer("Adam", amsgrad=True, fused=True),
        "adam, the rate a tensor": optimizer("Adam", lr=torch.tensor(0.02)),
        "nadam": optimizer("NAdam"),
        "radam": optimizer("RAdam"),
        "adafactor": optimizer("Adafactor"),
        "adagrad": optimizer("Adagrad"),
        "rprop": optimizer("Rprop"),
        "asgd": optimizer("ASGD"),
        "lbfgs": optimizer("LBFGS", lr=0.1, max_iter=3),
        "muon": matrices_by_muon,
        "sparse beside dense": sparse,
        "named parameters": plain(lambda m: torch.optim.AdamW(m.named_parameters(), lr=0.02)),
    },
    "schedules of torch": {
        name: plain(sgd, make_schedule)
        for name, make_schedule in {
            "one cycle": lambda o: schedules.OneCycleLR(o, max_lr=0.2, total_steps=12),
            "cyclic": lambda o: schedules.CyclicLR(o, 0.01, 0.1, step_size_up=3),
            "cosine": lambda o: schedules.CosineAnnealingLR(o, T_max=9),
            "restarts": lambda o: schedules.CosineAnnealingWarmRestarts(o, T_0=3),
            "sequential": lambda o: schedules.SequentialLR(
                o, [schedules.ConstantLR(o, 0.5, 2), schedules.ExponentialLR(o, 0.9)], [3]
            ),
            "chained": lambda o: schedules.ChainedScheduler(
                [schedules.ConstantLR(o, 0.5, 6), schedules.StepLR(o, 2)]
            ),
            "plateau": lambda o: schedules.ReduceLROnPlateau(o, patience=0),
            "lambda": lambda o: schedules.LambdaLR(o, lambda step: 1 / (1 + step)),
            "multiplicative": lambda o: schedules.MultiplicativeLR(o, lambda step: 0.9),
            "multi-step": lambda o: schedules.MultiStepLR(o, [2, 6]),
            "polynomial": lambda o: schedules.PolynomialLR(o, total_iters=9),
        }.items()
    },
    "averages of weights": {
        "ema": averaged(lambda m: AveragedModel(m, multi_avg_fn=get_ema_multi_avg_fn(0.9))),
        "swa": averaged(AveragedModel),
        "schedule-free": plain(lambda m: ScheduleFree(m.parameters(), lr=0.05)),
    },
    "orders of one's own": {"weighted, registered": fed(weighted), "packed stream": fed(stream)},
    "mixed precision": {"autocast and scaler": plain(sgd, amp=True)},
    "compiled": {
        "blocks": plain(sgd, make=compiled_blocks),
        "whole": plain(sgd, make=lambda: torch.compile(net(), backend="eager")),  # type: ignore[return-value]
    },
    "adapters": {"lora": adapted},
    "two models": {"gan": adversarial},
    "replay": {"a buffer and its generator": reinforced},
}
REFUSED: dict[str, tuple[Body, str]] = {
    "a registered sampler under workers": (fed(with_workers), "is asked ahead by 2 loader workers"),
    "a generator that ends": (fed(generated), "one that can be gone through again"),
}


@pytest.mark.parametrize(
    ("row", "name"), [(row, name) for row, cases in EXACT.items() for name in cases]
)
def test_what_the_table_calls_exact_is_equal_to_the_bit(
    tmp_path: Path, row: str, name: str
) -> None:
    body = EXACT[row][name]
    calm, cut = (TrainingRun(tmp_path / folder, steps=UNTIL) for folder in ("calm", "cut"))
    seen = []
    for run, until in ((calm, UNTIL), (cut, CUT), (cut, UNTIL)):
        torch.manual_seed(7)
        with run.joined() as a:
            seen.append(body(a, until))
    expected, first, second = seen
    assert first + second == expected


@pytest.mark.parametrize("name", REFUSED)
def test_what_the_table_calls_refused_is_refused_by_name(tmp_path: Path, name: str) -> None:
    body, why = REFUSED[name]
    run = TrainingRun(tmp_path, steps=UNTIL)
    with run.joined() as a, pytest.raises(TrainingError, match=re.escape(why)):
        body(a, UNTIL)


def test_the_table_has_every_row_that_is_tested() -> None:
    rows = set(re.findall(r"^\| (\w[^|]*?) \| (?:exact|refused|limited)", PAGE.read_text(), re.M))
    assert rows >= EXACT.keys() | REFUSED.keys()
    for test in re.findall(r"\(`(test_\w+)`\) \|$", PAGE.read_text(), re.M):
        assert (Path(__file__).parent / f"{test}.py").exists(), test
