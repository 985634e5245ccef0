"""Every knob is set and restored, on real networks."""

from __future__ import annotations

import copy
import os
import subprocess
import sys
import time
from collections import namedtuple
from collections.abc import Iterable
from pathlib import Path

import pytest
import torch
from torch import nn

from onefold.processes import available_cores, lease_cores
from onefold.processes.marked import VARIABLE, kill_marked
from onefold.training.forward_call import ForwardCall, output_error, runs
from onefold.training.knobs import KnobUnavailable, TrainingContext, applied, available_knobs
from onefold.training.knobs.accelerators import GpuCount, data_parallel
from onefold.training.knobs.catalog import KNOBS, PRECISION_KNOBS
from onefold.training.knobs.execution import OptimizerUpdate
from onefold.training.knobs.memory import MemoryFormat
from onefold.training.knobs.memory_limit import MemoryLimit
from onefold.training.knobs.precision import MixedPrecision
from onefold.training.knobs.processor import (
    CoreAffinity,
    CpuFrequency,
    ThreadCount,
    machine_description,
)

IMAGES, LABELS = torch.rand(8, 3, 12, 12), torch.arange(8) % 4


class Views(nn.Module):
    """Requires a contiguous memory format."""

    def __init__(self) -> None:
        super().__init__()
        self.convolution = nn.Conv2d(3, 4, 3)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.convolution(images).view(len(images), -1)


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(800, 4))


def a_context(model: nn.Module | None = None, optimizer=torch.optim.Adam) -> TrainingContext:
    model = model or network()
    return TrainingContext(model, optimizer(model.parameters(), lr=0.01), torch.device("cpu"), tuple(available_cores()))


def step(context: TrainingContext) -> float:
    images, labels = context.adapt((IMAGES, LABELS))
    context.optimizer.zero_grad()
    loss = nn.functional.cross_entropy(context.model(images).float(), labels)
    loss.backward()
    context.optimizer.step()
    return float(loss.detach())


def observed_call(context: TrainingContext) -> ForwardCall:
    call = ForwardCall(context.model)
    with call.recorded():
        context.model(IMAGES)
    return call


def state(context: TrainingContext) -> dict[str, object]:
    """Return everything that knobs may change."""
    flags = [(group.get("foreach"), group.get("fused")) for group in context.optimizer.param_groups]
    return {
        "threads": torch.get_num_threads(),
        "cores": os.sched_getaffinity(0),
        "autocast": torch.is_autocast_enabled("cpu"),
        "strides": [parameter.stride() for parameter in context.model.parameters()],
        "update": flags,
        "adapters": list(context.adapters),
        "compiled": context.model._compiled_call_impl,
    }


@pytest.mark.parametrize("knob", [knob for knob in KNOBS if knob.setup_s == 0], ids=lambda knob: knob.name)
def test_every_value_of_a_knob_is_restored_also_after_a_failure(knob):
    context = a_context()
    step(context)
    try:
        options = knob.options(context)
    except KnobUnavailable as reason:
        pytest.skip(str(reason))
    before = state(context)
    assert len(set(options)) == len(options) >= 2
    for option in options:
        with knob.applied(option, context):
            step(context)
        assert state(context) == before
        with pytest.raises(RuntimeError, match="on purpose"), knob.applied(option, context):
            raise RuntimeError("on purpose")
        assert state(context) == before


def test_knobs_without_reduced_precision_learn_the_same_up_to_rounding():
    reference = a_context()
    losses = [step(reference) for _ in range(5)]
    exact = available_knobs(a_context()).options
    assert not set(exact) & PRECISION_KNOBS
    for name, options in exact.items():
        for option in options[1:]:
            context = a_context()
            with applied({name: option}, context):
                assert [step(context) for _ in range(5)] == pytest.approx(losses, rel=1e-3)


def test_the_current_value_is_the_first_option():
    context = a_context()
    available = available_knobs(context)
    assert available.defaults.get("threads", torch.get_num_threads()) == torch.get_num_threads()
    assert available.defaults["memory_format"] == "contiguous"
    assert available.defaults["update"] == "loop"


def test_an_unavailable_knob_has_a_reason():
    context = a_context(nn.Sequential(nn.Flatten(), nn.Linear(432, 4)), torch.optim.LBFGS)
    available = available_knobs(context)
    assert "no 1-D or 2-D convolutions" in available.unavailable["memory_format"]
    assert "one implementation" in available.unavailable["update"]
    assert "not allowed" in available.unavailable["precision"]
    assert "too long" in available.unavailable["compile"]
    assert not set(available.unavailable) & set(available.options)


def test_reduced_precision_is_available_only_if_allowed():
    context = a_context()
    try:
        MixedPrecision().options(context)
    except KnobUnavailable as reason:
        pytest.skip(str(reason))
    assert "precision" not in available_knobs(context).options
    assert available_knobs(context, reduced=True).options["precision"] == ("float32", "bfloat16")


def test_a_network_that_requires_a_memory_format_is_detected_without_side_effects():
    context = a_context()
    assert runs(observed_call(context), context, MemoryFormat(), "channels last")
    context = a_context(Views())
    context.model.train()
    call = observed_call(context)
    random_state = torch.random.get_rng_state()
    assert not runs(call, context, MemoryFormat(), "channels last")
    assert context.model.training
    assert torch.equal(torch.random.get_rng_state(), random_state)
    assert context.adapters == []


def test_the_tensors_of_any_batch_are_adapted():
    context = a_context()
    pair = namedtuple("Pair", "images labels")
    with applied({"memory_format": "channels last"}, context):
        for batch in ([IMAGES, LABELS], (IMAGES, LABELS), pair(IMAGES, LABELS), {"images": IMAGES, "labels": LABELS}):
            adapted = context.adapt(batch)
            assert type(adapted) is type(batch)
            images, labels = adapted.values() if isinstance(adapted, dict) else adapted
            assert images.is_contiguous(memory_format=torch.channels_last)
            assert labels is LABELS
    assert context.adapt("text") == "text"


def test_the_output_error_of_reduced_precision_shows_lost_features():
    torch.manual_seed(0)
    for offset, is_small in ((0.0, True), (1000.0, False)):
        context = a_context(nn.Sequential(nn.Linear(16, 32), nn.BatchNorm1d(32), nn.Dropout(), nn.Linear(32, 4)))
        call = ForwardCall(context.model)
        with call.recorded():
            context.model(torch.randn(64, 16) + offset)
        before = copy.deepcopy(context.model.state_dict())
        assert (output_error(call, context, MixedPrecision(), "bfloat16") < 0.05) == is_small
        assert output_error(call, context, MixedPrecision(), "float32") == 0.0
        assert all(torch.equal(value, before[name]) for name, value in context.model.state_dict().items())
        assert all(module.training for module in context.model.modules())


def test_one_core_has_no_threads_to_choose():
    context = a_context()
    context.cores = context.cores[:1]
    for knob in (ThreadCount(), CoreAffinity()):
        with pytest.raises(KnobUnavailable):
            knob.options(context)


@pytest.mark.skipif(len(available_cores()) < 2, reason="one core cannot be chosen")
def test_the_core_of_another_worker_is_not_taken_while_one_is_free():
    context = a_context()
    first, second = context.quietest_cores = context.cores[:2]
    with lease_cores(1, [first]), CoreAffinity().applied(1, context):
        assert os.sched_getaffinity(0) == {second}
    with CoreAffinity().applied(1, context), lease_cores(1, [first, second]) as lease:
        assert lease.cores == [second]


def test_cores_are_taken_in_steps():
    context = a_context()
    context.cores = tuple(range(48))
    assert CoreAffinity().options(context) == ("all", 1, 2, 4, 8, 16, 32)


def write_frequencies(tree: Path, cores: Iterable[int], current: int = 3000) -> None:
    for core in cores:
        folder = tree / f"cpu{core}" / "cpufreq"
        folder.mkdir(parents=True)
        limits = {"scaling_max_freq": current, "cpuinfo_max_freq": 4000, "cpuinfo_min_freq": 2500}
        for name, value in limits.items():
            (folder / name).write_text(f"{value}\n")


def limits_in(tree: Path) -> set[str]:
    return {file.read_text() for file in tree.rglob("scaling_max_freq")}


def test_frequencies_are_set_for_every_core_and_restored(tmp_path: Path):
    context = a_context()
    write_frequencies(tmp_path, context.cores)
    knob = CpuFrequency(tmp_path)
    assert knob.options(context) == (3000, 4000)
    with knob.applied(4000, context):
        assert limits_in(tmp_path) == {"4000"}
        with pytest.raises(KnobUnavailable, match="already have their highest"):
            knob.options(context)
    assert limits_in(tmp_path) == {"3000\n"}
    with pytest.raises(KnobUnavailable, match="exposes no frequency"):
        CpuFrequency(tmp_path / "nowhere").options(context)


def test_lower_frequencies_are_offered_to_save_energy(tmp_path: Path):
    context = a_context()
    context.optimize_for = "energy"
    write_frequencies(tmp_path, context.cores, current=4000)
    assert CpuFrequency(tmp_path).options(context) == (4000, 3200), "2400 is below the lowest frequency"


def holder_of_frequency(tree: Path, value: int, **environment: str) -> subprocess.Popen[bytes]:
    """Start a process that tunes the frequency of core 0 and holds it at a value until its input ends."""
    program = f"""
from pathlib import Path
from onefold.training.knobs.processor import CpuFrequency
from onefold.training.knobs.knob import TrainingContext
import torch
from torch import nn
context = TrainingContext(nn.Identity(), None, torch.device("cpu"), (0,))
knob = CpuFrequency(Path({str(tree)!r}))
assert {value} in knob.options(context)
with knob.applied({value}, context):
    print("set", flush=True)
    input()
"""
    holder = subprocess.Popen(
        [sys.executable, "-c", program],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, **environment},
    )
    assert holder.stdout is not None
    assert holder.stdout.readline() == b"set\n"
    assert limits_in(tree) == {str(value)}
    return holder


@pytest.mark.parametrize("is_worker", [False, True])
def test_a_killed_process_leaves_no_slow_cores_behind(tmp_path: Path, is_worker: bool):
    write_frequencies(tmp_path, (0,), current=3000)
    mark = f"test-{os.getpid()}/"
    holder = holder_of_frequency(tmp_path, 4000, **({VARIABLE: mark} if is_worker else {}))
    if is_worker:
        kill_marked(mark)  # what a study does to a worker and its children, and the guard of a killed study
    else:
        holder.kill()
    holder.communicate()
    deadline = time.monotonic() + 60
    while limits_in(tmp_path) != {"3000\n"} and time.monotonic() < deadline:
        time.sleep(0.01)
    assert limits_in(tmp_path) == {"3000\n"}


def test_only_one_process_tunes_a_frequency(tmp_path: Path):
    write_frequencies(tmp_path, (0,), current=3000)
    context = a_context()
    context.cores = (0,)
    holder = holder_of_frequency(tmp_path, 4000)
    try:
        with pytest.raises(KnobUnavailable, match="another process sets the frequencies"):
            CpuFrequency(tmp_path).options(context)
    finally:
        holder.communicate(b"\n")
    assert limits_in(tmp_path) == {"3000\n"}
    assert CpuFrequency(tmp_path).options(context) == (3000, 4000)


def test_memory_limits_are_those_above_what_is_used(tmp_path: Path):
    (tmp_path / "membership").write_text("0::/trials/1\n")
    group = tmp_path / "trials" / "1"
    group.mkdir(parents=True)
    knob = MemoryLimit(tmp_path, tmp_path / "membership")
    with pytest.raises(KnobUnavailable, match="no control group"):
        knob.options(a_context())
    (group / "memory.high").write_text("max\n")
    (group / "memory.current").write_text(str(7 * 2**30))
    assert knob.options(a_context()) == ("max", 32, 16), "at least twice what is used"
    with knob.applied(16, a_context()):
        assert (group / "memory.high").read_text() == str(16 * 2**30)
        with pytest.raises(KnobUnavailable, match="has a memory limit already"):
            knob.options(a_context())
    assert (group / "memory.high").read_text() == "max\n"


def test_the_current_optimizer_update_is_detected():
    assert OptimizerUpdate().options(a_context())[0] == "loop"
    model = network()
    fused = TrainingContext(model, torch.optim.Adam(model.parameters(), fused=True), torch.device("cpu"), (0,))
    assert OptimizerUpdate().options(fused)[0] == "fused"


def test_a_machine_is_described_by_its_processor_cores_and_torch():
    description = machine_description(a_context())
    assert f"{len(available_cores())} cores" in description
    assert torch.__version__ in description


def test_frozen_layers_stay_frozen_after_a_test_run():
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(800, 4))
    context = a_context(model.train())
    model[1].eval()
    assert runs(observed_call(context), context, MemoryFormat(), "channels last")
    assert [module.training for module in model] == [True, False, True, True, True]


def test_a_channels_last_network_is_restored():
    model = network().to(memory_format=torch.channels_last)
    context = a_context(model)
    step(context)
    assert available_knobs(context).defaults["memory_format"] == "channels last"
    before = state(context)["strides"]
    with applied({"memory_format": "contiguous"}, context):
        step(context)
    assert state(context)["strides"] == before


def test_a_knob_that_fails_is_unavailable():
    context = a_context()
    context.optimizer = object()  # for example, two optimizers behind one name
    assert "does not support" in available_knobs(context).unavailable["update"]


@pytest.mark.parametrize("update", ["loop", "foreach", "fused"])
def test_a_network_with_1d_convolutions_learns_the_same_with_channels_last(update: str):
    def build() -> TrainingContext:
        torch.manual_seed(0)
        return a_context(
            nn.Sequential(nn.Flatten(2), nn.Conv1d(3, 8, 5), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 140, 4))
        )

    plain, tuned = build(), build()
    losses = [step(plain) for _ in range(5)]
    with applied({"memory_format": "channels last", "update": update}, tuned):
        assert [step(tuned) for _ in range(5)] == pytest.approx(losses, rel=1e-4)
        weight = tuned.model[1].weight
        kept = tuned.optimizer.state[weight]
        assert {part.stride() for part in (weight, kept["exp_avg"], kept["exp_avg_sq"])} == {(15, 1, 3)}
    assert weight.is_contiguous()
    assert torch.allclose(weight, plain.model[1].weight, atol=1e-4)
    assert step(tuned) == pytest.approx(step(plain), rel=1e-4)


def test_several_gpus_are_available_only_if_they_exist(monkeypatch: pytest.MonkeyPatch):
    context = a_context()
    with pytest.raises(KnobUnavailable, match="does not run on GPUs"):
        GpuCount().options(context)
    context.device = torch.device("cuda")
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    with pytest.raises(KnobUnavailable, match="one GPU"):
        GpuCount().options(context)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 6)
    assert GpuCount().options(context) == (1, 2, 4, 6)
    context.model.append(nn.BatchNorm1d(4))
    with pytest.raises(KnobUnavailable, match="batch norms"):
        GpuCount().options(context)


def test_a_batch_is_distributed_and_the_network_restored(monkeypatch: pytest.MonkeyPatch):
    context, calls = a_context(), []

    def fake_data_parallel(module, inputs, gpus, module_kwargs):
        calls.append(gpus)
        return module(*inputs)  # the network itself stands for its replicas

    monkeypatch.setattr(torch.nn.parallel, "data_parallel", fake_data_parallel)
    expected = context.model(IMAGES)
    with data_parallel(context.model, [0, 1]):
        assert torch.equal(context.model(IMAGES), expected)
        assert torch.equal(context.model(IMAGES), expected)
    assert calls == [[0, 1], [0, 1]]
    assert "forward" not in vars(context.model)
