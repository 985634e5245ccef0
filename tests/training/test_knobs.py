"""Every knob is turned and put back, on real networks."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch
from torch import nn

from onefold.training.knobs import Job, NotHere, catalogue, turned
from onefold.training.knobs.accelerators import Gpus, spread
from onefold.training.knobs.arithmetic import Precision
from onefold.training.knobs.catalogue import KNOBS, REDUCING, runs_with
from onefold.training.knobs.processor import Cores, Frequency, Threads, cores_here, machine_of
from onefold.training.knobs.program import Update

IMAGES, LABELS = torch.rand(8, 3, 12, 12), torch.arange(8) % 4


class Views(nn.Module):
    """Asks for its numbers to lie in a certain order."""

    def __init__(self) -> None:
        super().__init__()
        self.convolution = nn.Conv2d(3, 4, 3)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.convolution(images).view(len(images), -1)


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(800, 4))


def a_job(model: nn.Module | None = None, optimizer=torch.optim.Adam) -> Job:
    model = model or network()
    return Job(model, optimizer(model.parameters(), lr=0.01), torch.device("cpu"), cores_here())


def step(job: Job) -> float:
    images, labels = job.adapted((IMAGES, LABELS))
    job.optimizer.zero_grad()
    loss = nn.functional.cross_entropy(job.model(images).float(), labels)
    loss.backward()
    job.optimizer.step()
    return float(loss.detach())


def state(job: Job) -> dict[str, object]:
    """All that knobs may change."""
    flags = [(group.get("foreach"), group.get("fused")) for group in job.optimizer.param_groups]
    return {
        "threads": torch.get_num_threads(),
        "cores": os.sched_getaffinity(0),
        "autocast": torch.is_autocast_enabled("cpu"),
        "strides": [parameter.stride() for parameter in job.model.parameters()],
        "update": flags,
        "adapters": list(job.adapters),
        "compiled": job.model._compiled_call_impl,
    }


@pytest.mark.parametrize("knob", [knob for knob in KNOBS if knob.start_s == 0], ids=lambda knob: knob.name)
def test_a_knob_is_put_back_whatever_it_was_turned_to_also_after_a_failure(knob):
    job = a_job()
    step(job)
    try:
        options = knob.options(job)
    except NotHere as reason:
        pytest.skip(str(reason))
    before = state(job)
    assert len(set(options)) == len(options) >= 2
    for option in options:
        with knob.turned(option, job):
            step(job)
        assert state(job) == before
        with pytest.raises(RuntimeError, match="on purpose"), knob.turned(option, job):
            raise RuntimeError("on purpose")
        assert state(job) == before


def test_knobs_that_keep_precision_learn_the_same_but_for_rounding():
    reference = a_job()
    losses = [step(reference) for _ in range(5)]
    exact = catalogue(a_job()).knobs
    assert not set(exact) & REDUCING
    for name, options in exact.items():
        for option in options[1:]:
            job = a_job()
            with turned({name: option}, job):
                assert [step(job) for _ in range(5)] == pytest.approx(losses, rel=1e-3)


def test_the_found_setting_comes_first_and_is_what_stands():
    job = a_job()
    offer = catalogue(job)
    assert offer.found.get("threads", torch.get_num_threads()) == torch.get_num_threads()
    assert offer.found["memory_format"] == "contiguous"
    assert offer.found["update"] == "loop"


def test_what_is_not_here_says_why():
    job = a_job(nn.Sequential(nn.Flatten(), nn.Linear(432, 4)), torch.optim.LBFGS)
    offer = catalogue(job)
    assert "no convolutions over one or two dimensions" in offer.missing["memory_format"]
    assert "one way only" in offer.missing["update"]
    assert "can change what is learned" in offer.missing["precision"]
    assert "too long" in offer.missing["compile"]
    assert not set(offer.missing) & set(offer.knobs)


def test_reduced_precision_is_offered_only_where_it_is_allowed():
    job = a_job()
    try:
        Precision().options(job)
    except NotHere as reason:
        pytest.skip(str(reason))
    assert "precision" not in catalogue(job).knobs
    assert catalogue(job, reduced=True).knobs["precision"] == ("float32", "bfloat16")


def test_a_network_that_needs_its_numbers_in_order_is_found_out_without_harm():
    batch = (IMAGES, LABELS)
    assert runs_with("memory_format", "channels last", a_job(), batch)
    job = a_job(Views())
    job.model.train()
    random = torch.random.get_rng_state()
    assert not runs_with("memory_format", "channels last", job, batch)
    assert job.model.training
    assert torch.equal(torch.random.get_rng_state(), random)
    assert job.adapters == []


def test_batches_that_are_no_tuples_are_left_as_they_are():
    job = a_job()
    with turned({"memory_format": "channels last"}, job):
        batch = {"images": IMAGES}
        assert job.adapted(batch) is batch
        images, labels = job.adapted([IMAGES, LABELS])
        assert images.is_contiguous(memory_format=torch.channels_last)
        assert labels is LABELS
        assert not runs_with("memory_format", "channels last", job, batch)


def test_one_core_has_no_threads_to_choose():
    job = a_job()
    job.cores = job.cores[:1]
    for knob in (Threads(), Cores()):
        with pytest.raises(NotHere):
            knob.options(job)


def test_frequencies_are_set_for_every_core_and_put_back(tmp_path: Path):
    job = a_job()
    for core in job.cores:
        folder = tmp_path / f"cpu{core}" / "cpufreq"
        folder.mkdir(parents=True)
        for name, value in (("scaling_max_freq", 3000), ("cpuinfo_max_freq", 4000)):
            (folder / name).write_text(f"{value}\n")
    knob = Frequency(tmp_path)
    assert knob.options(job) == (3000, 4000)
    with knob.turned(4000, job):
        assert {file.read_text() for file in tmp_path.rglob("scaling_max_freq")} == {"4000"}
        with pytest.raises(NotHere, match="highest already"):
            knob.options(job)
    assert {file.read_text() for file in tmp_path.rglob("scaling_max_freq")} == {"3000\n"}
    with pytest.raises(NotHere, match="offers no frequencies"):
        Frequency(tmp_path / "nowhere").options(job)


def test_the_update_that_stands_is_recognised():
    assert Update().options(a_job())[0] == "loop"
    model = network()
    fused = Job(model, torch.optim.Adam(model.parameters(), fused=True), torch.device("cpu"), (0,))
    assert Update().options(fused)[0] == "fused"


def test_a_machine_is_known_by_its_processor_cores_and_torch():
    told = machine_of(a_job())
    assert f"{len(cores_here())} cores" in told
    assert torch.__version__ in told


def test_layers_that_were_frozen_stay_frozen_after_a_rehearsal():
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(800, 4))
    job = a_job(model.train())
    model[1].eval()
    runs_with("memory_format", "channels last", job, (IMAGES, LABELS))
    assert [module.training for module in model] == [True, False, True, True, True]


def test_a_network_that_already_lies_channels_last_is_put_back_so():
    model = network().to(memory_format=torch.channels_last)
    job = a_job(model)
    step(job)
    assert catalogue(job).found["memory_format"] == "channels last"
    before = state(job)["strides"]
    with turned({"memory_format": "contiguous"}, job):
        step(job)
    assert state(job)["strides"] == before


def test_what_does_not_suit_a_training_is_missing_and_no_failure():
    job = a_job()
    job.optimizer = object()  # a pair of optimisers behind one name, say
    assert "does not suit" in catalogue(job).missing["update"]


@pytest.mark.parametrize("update", ["loop", "foreach", "fused"])
def test_a_network_over_sequences_learns_the_same_with_its_channels_side_by_side(update: str):
    def job() -> Job:
        torch.manual_seed(0)
        return a_job(nn.Sequential(nn.Flatten(2), nn.Conv1d(3, 8, 5), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 140, 4)))

    plain, turned_job = job(), job()
    losses = [step(plain) for _ in range(5)]
    with turned({"memory_format": "channels last", "update": update}, turned_job):
        assert [step(turned_job) for _ in range(5)] == pytest.approx(losses, rel=1e-4)
        weight = turned_job.model[1].weight
        kept = turned_job.optimizer.state[weight]
        assert {part.stride() for part in (weight, kept["exp_avg"], kept["exp_avg_sq"])} == {(15, 1, 3)}
    assert weight.is_contiguous()
    assert torch.allclose(weight, plain.model[1].weight, atol=1e-4)
    assert step(turned_job) == pytest.approx(step(plain), rel=1e-4)


def test_several_gpus_are_offered_only_where_there_are_some(monkeypatch: pytest.MonkeyPatch):
    job = a_job()
    with pytest.raises(NotHere, match="not done by GPUs"):
        Gpus().options(job)
    job.device = torch.device("cuda")
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    with pytest.raises(NotHere, match="one GPU"):
        Gpus().options(job)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 6)
    assert Gpus().options(job) == (1, 2, 4, 6)
    job.model.append(nn.BatchNorm1d(4))
    with pytest.raises(NotHere, match="norms over a whole batch"):
        Gpus().options(job)


def test_a_batch_is_handed_to_the_gpus_and_the_network_put_back(monkeypatch: pytest.MonkeyPatch):
    job, asked = a_job(), []

    def data_parallel(module, inputs, gpus, module_kwargs):
        asked.append(gpus)
        return module(*inputs)  # the network itself, as a copy on a GPU would be

    monkeypatch.setattr(torch.nn.parallel, "data_parallel", data_parallel)
    wanted = job.model(IMAGES)
    with spread(job.model, [0, 1]):
        assert torch.equal(job.model(IMAGES), wanted)
        assert torch.equal(job.model(IMAGES), wanted)
    assert asked == [[0, 1], [0, 1]]
    assert "forward" not in vars(job.model)
