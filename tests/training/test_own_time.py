"""What counts as a rank's own time: passes of the outermost model in training mode, once each."""

from __future__ import annotations

import copy
import io
import pickle
import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from tracks_dagster.training.signals import own_time
from tracks_dagster.training.signals.own_time import OwnTime

PASS_S = 1.0
X = torch.ones(1)


class Clock:
    """Stands in for the module `time` of `own_time`: only models and sleeps move it."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def perf_counter(self) -> float:
        return self.now_s

    def sleep(self, seconds: float) -> None:
        self.now_s += seconds


class Model(nn.Module):
    """Takes a second to forward, and calls `inner` in it."""

    def __init__(self, clock: Clock, inner: nn.Module | None = None) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(1))
        self.clock = clock
        self.inner = inner
        self.fails = False

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.clock.sleep(PASS_S)
        if self.inner is not None:
            x = self.inner(x)
        if self.fails:
            raise ValueError("as meant")
        return x * self.weight


class Recursive(Model):
    """Calls itself twice."""

    def forward(self, x: torch.Tensor, depth: int = 2) -> torch.Tensor:
        self.clock.sleep(PASS_S)
        return self(x, depth - 1) if depth else x


class Sharded(Model):
    """Stands in for a module that FSDP2 shards."""


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(own_time, "time", clock)
    return clock


@pytest.fixture
def own() -> OwnTime:
    return OwnTime(torch.device("cpu"))


def taken(own: OwnTime, body: Callable[[], Any]) -> float | None:
    """The own time of a step that does `body`."""
    own.begin()
    body()
    return own.end()


def test_every_pass_of_a_step_counts_and_no_other(own: OwnTime, clock: Clock) -> None:
    model = Model(clock)
    own.arm(model)
    own.arm(model)  # a second time changes nothing
    model(X)  # before the first step
    assert taken(own, lambda: [model(X) for _ in range(3)]) == 3.0
    model(X)  # between two steps
    clock.sleep(5.0)
    assert taken(own, lambda: model(X)) == 1.0


def test_a_step_without_a_pass_has_no_own_time(own: OwnTime, clock: Clock) -> None:
    model = Model(clock)
    own.arm(model)
    assert taken(own, lambda: model.forward(X)) is None  # past every hook
    model.eval()
    assert taken(own, lambda: model(X)) is None


def test_a_model_inside_another_counts_once_and_several_models_add_up(
    own: OwnTime, clock: Clock
) -> None:
    inner = Model(clock)
    outer = Model(clock, inner)
    for model in (inner, outer):
        own.arm(model)
    assert taken(own, lambda: (outer(X), inner(X))) == 3.0


def test_a_model_that_calls_itself_counts_to_its_end(own: OwnTime, clock: Clock) -> None:
    model = Recursive(clock)
    own.arm(model)
    assert taken(own, lambda: model(X)) == 3.0


@pytest.mark.parametrize("use_reentrant", [True, False])
def test_what_is_computed_again_in_backward_counts_once(
    own: OwnTime, clock: Clock, use_reentrant: bool
) -> None:
    model = Model(clock)
    own.arm(model)
    x = torch.ones(1, requires_grad=True)

    def step() -> None:
        out: Any = checkpoint(model, x, use_reentrant=use_reentrant)
        out.sum().backward()

    assert taken(own, step) == 1.0
    assert clock.now_s == 2.0  # it ran twice


def test_a_pass_that_fails_counts_to_where_it_failed(own: OwnTime, clock: Clock) -> None:
    model = Model(clock)
    own.arm(model)

    def step() -> None:
        model.fails = True
        with pytest.raises(ValueError, match="as meant"):
            model(X)
        clock.sleep(7.0)
        model.fails = False
        model(X)

    assert taken(own, step) == 2.0


def test_an_evaluation_and_another_thread_count_nothing(own: OwnTime, clock: Clock) -> None:
    model = Model(clock)
    own.arm(model)

    def step() -> None:
        with own.paused():
            model(X)
        thread = threading.Thread(target=model, args=(X,))
        thread.start()
        thread.join()
        model(X)

    assert taken(own, step) == 1.0


def test_copies_and_pickles_of_a_model_have_none_of_our_hooks(own: OwnTime) -> None:
    model = nn.Linear(1, 1)
    own.arm(model)
    stored = io.BytesIO()
    torch.save(model, stored)
    stored.seek(0)
    copies = [
        copy.deepcopy(model),
        pickle.loads(pickle.dumps(model)),
        torch.load(stored, weights_only=False),
    ]
    assert b"tracks_dagster" not in stored.getvalue()
    assert taken(own, lambda: [each(X) for each in copies]) is None
    assert all(torch.equal(each(X), model(X)) for each in copies)


def test_the_hooks_vanish(own: OwnTime, clock: Clock) -> None:
    outer = Model(clock, Model(clock))
    own.arm(outer)
    taken(own, lambda: outer(X))
    own.disarm()
    for module in outer.modules():
        assert not module._forward_hooks
        assert not module._forward_pre_hooks


def test_a_drill_stretches_each_pass(own: OwnTime, clock: Clock) -> None:
    model = Model(clock)
    own.arm(model)
    own.factor = 3.0
    assert taken(own, lambda: [model(X), model(X)]) == 6.0
    assert own.dragged_s == 6.0


def test_what_waits_for_other_ranks_inside_a_pass_is_left_out(
    own: OwnTime, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    inner = Sharded(clock)
    outer = Model(clock, inner)
    own.arm(outer)
    fsdp = type("fsdp", (), {"FSDPModule": Sharded})
    monkeypatch.setitem(own_time.sys.modules, "torch.distributed.fsdp", fsdp)
    # As FSDP2 does: its hook, before all others, waits for the weights.
    inner.register_forward_pre_hook(lambda module, given: clock.sleep(10.0), prepend=True)
    assert [taken(own, lambda: outer(X)) for _ in range(2)] == [2.0, 2.0]
    assert clock.now_s == 2 * 12.0


def test_nothing_is_reported_of_passes_that_wait_inside_compiled_code(
    own: OwnTime, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    inner = Sharded(clock)
    outer = Model(clock, inner)
    inner._compiled_call_impl = inner._call_impl  # as `inner.compile()` leaves it
    own.arm(outer)
    fsdp = type("fsdp", (), {"FSDPModule": Sharded})
    monkeypatch.setitem(own_time.sys.modules, "torch.distributed.fsdp", fsdp)
    assert taken(own, lambda: outer(X)) is None


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_script_module_takes_no_hooks_and_is_let_be(own: OwnTime) -> None:
    model = torch.jit.script(nn.Linear(1, 1))
    own.arm(model)
    assert taken(own, lambda: model(X)) is None


def test_a_compiled_model_is_timed_from_outside_and_its_graph_has_no_break(own: OwnTime) -> None:
    inside, outside = nn.Linear(1, 1), nn.Linear(1, 1)
    compiled: Any = torch.compile(outside, backend="eager", fullgraph=True)
    own.arm(compiled)
    assert (taken(own, lambda: compiled(X)) or 0.0) > 0.0
    own.arm(inside)  # and compiled afterwards: traced without the hooks, nothing is known
    again = torch.compile(inside, backend="eager", fullgraph=True)
    assert taken(own, lambda: again(X)) is None


class Gpu:
    """Stands in for `torch.cuda`: what is enqueued runs later, when the test says so.

    An event is recorded where the stream has come to. now_s: what the device has done of its work.
    """

    def __init__(self) -> None:
        self.enqueued_s = self.now_s = 0.0
        self.events = 0
        self.is_capturing = False
        gpu = self

        class Event:
            """One event. Waiting for it, or asking too early, is what a step must not do."""

            def __init__(self, *, enable_timing: bool) -> None:
                assert enable_timing
                gpu.events += 1
                self.at_s = float("nan")

            def record(self) -> None:
                self.at_s = gpu.enqueued_s

            def query(self) -> bool:
                return self.at_s <= gpu.now_s

            def elapsed_time(self, end: Event) -> float:
                assert self.query()
                assert end.query()
                return (end.at_s - self.at_s) * 1e3  # ms

            def synchronize(self) -> None:
                raise AssertionError("it waits for the device")

        self.Event = Event

    def is_current_stream_capturing(self) -> bool:
        return self.is_capturing

    def synchronize(self) -> None:
        raise AssertionError("it waits for the device")

    def finish(self) -> None:
        """Do all that was enqueued."""
        self.now_s = self.enqueued_s


class OnGpu(Model):
    """Its pass takes the host a tenth of what the device needs for it."""

    def __init__(self, clock: Clock, gpu: Gpu) -> None:
        super().__init__(clock)
        self.gpu = gpu

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.clock.sleep(PASS_S / 10)
        self.gpu.enqueued_s += PASS_S
        return x * self.weight


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Gpu:
    gpu = Gpu()
    for name in ("Event", "is_current_stream_capturing", "synchronize"):
        monkeypatch.setattr(own_time.torch.cuda, name, getattr(gpu, name))
    return gpu


def test_on_a_gpu_passes_are_timed_by_its_own_events_and_nothing_waits_for_it(
    clock: Clock, gpu: Gpu
) -> None:
    own, model = OwnTime(torch.device("cuda")), OnGpu(clock, gpu)
    own.arm(model)

    def step(passes: int) -> float | None:
        own.begin()
        for _ in range(passes):
            model(X)
            gpu.enqueued_s += 7.0  # backward
        gpu.finish()  # the script reads its loss, which waits for all before it
        return own.end()

    assert [step(passes) for passes in (1, 3, 2)] == [1.0, 3.0, 2.0]
    assert gpu.events == 6  # two for a pass, used again in each step


def test_of_a_gpu_that_is_still_at_it_nothing_is_known(clock: Clock, gpu: Gpu) -> None:
    own, model = OwnTime(torch.device("cuda")), OnGpu(clock, gpu)
    own.arm(model)
    assert taken(own, lambda: (model(X), gpu.finish(), model(X))) is None
    assert taken(own, lambda: (model(X), gpu.finish())) == 1.0


def test_what_a_cuda_graph_records_has_no_time(clock: Clock, gpu: Gpu) -> None:
    own, model = OwnTime(torch.device("cuda")), OnGpu(clock, gpu)
    own.arm(model)
    gpu.is_capturing = True
    assert taken(own, lambda: (model(X), gpu.finish())) is None
    assert gpu.events == 0
    gpu.is_capturing = False
    assert taken(own, lambda: (model(X), gpu.finish())) == 1.0


def test_of_more_passes_than_events_are_kept_for_nothing_is_known(
    clock: Clock, gpu: Gpu, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(own_time, "STRETCHES_MAX", 3)
    own, model = OwnTime(torch.device("cuda")), OnGpu(clock, gpu)
    own.arm(model)
    assert taken(own, lambda: ([model(X) for _ in range(3)], gpu.finish())) == 3.0
    assert taken(own, lambda: ([model(X) for _ in range(4)], gpu.finish())) is None
    assert gpu.events == 6
