"""Workloads of the impact study: spaces of its table 2, losses and optimizers of Keras."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnxruntime
import pytest
import torch
from torch.nn import functional

from onefold import Choice, Config, Rejected, Workload
from onefold.compression.channel_pruning import ChannelPruner
from onefold.compression.registry import method_named
from onefold.serving.export import check, export
from onefold.vocabulary.errors import DatasetError, InputError, ModelError
from onefold.vocabulary.workload_reference import load
from onefold.workloads.ftrl import Ftrl
from onefold.workloads.impact_study.workload import LOSSES, OPTIMIZERS, kl_divergence, poisson

IMAGE_CNN, RESNET, TEXT_CNN, LSTM = WORKLOADS = ("paper-image-cnn", "paper-resnet", "paper-text-cnn", "paper-lstm")
COMMON = dict(dropout=0.5, activation="relu", loss="crossentropy", optimizer="adam", lr=1e-3, batch_size=32)
DEFAULTS = {
    IMAGE_CNN: COMMON | dict(filters=12, kernel=3, pooling="max", batch_size=128, epochs=4),
    RESNET: COMMON | dict(filters=16, kernel=7, pooling="globalavg", lr=1e-2, epochs=8),
    TEXT_CNN: COMMON | dict(filters=128, kernel=7, embedding=128, pooling="globalmax", epochs=3),
    LSTM: COMMON | dict(units=64, embedding=128, activation="tanh", epochs=2),
}
SMALL = {
    IMAGE_CNN: dict(filters=6, kernel=9),
    RESNET: dict(filters=2, kernel=9),
    TEXT_CNN: dict(filters=8, kernel=9, embedding=8),
    LSTM: dict(units=16, embedding=16),
}
POOLINGS = {IMAGE_CNN: ["max", "avg"], RESNET: ["max", "avg", "globalmax", "globalavg"]}
POOLINGS[TEXT_CNN] = ["globalmax", "globalavg"]


def samples(name: str, count: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    if name in (TEXT_CNN, LSTM):
        return torch.randint(0, 10_000, (count, 256), generator=generator)
    return torch.randn((count, 1, 28, 28) if name == IMAGE_CNN else (count, 3, 32, 32), generator=generator)


def build(workload: Workload, config: Config) -> torch.nn.Module:
    torch.manual_seed(0)
    return workload.build(config)


def outputs_of(path: Path, inputs: torch.Tensor) -> np.ndarray:
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    return session.run(None, {"input0": inputs.numpy()})[0]


@pytest.mark.parametrize("name", WORKLOADS)
def test_space_matches_the_table(name: str) -> None:
    space = load(name).space
    assert list(space.groups) == ["architecture", "layers", "training"]
    assert dict(space.default()) == DEFAULTS[name]
    options = {key: parameter.options for key, parameter in space.parameters.items() if isinstance(parameter, Choice)}
    assert options["activation"] == ("tanh", "relu", "sigmoid")
    assert options["loss"] == ("crossentropy", "poisson", "kl_divergence")
    assert options["optimizer"] == ("sgd", "rmsprop", "adam", "adadelta", "adagrad", "adamax", "nadam", "ftrl")
    assert list(options.get("pooling", [])) == POOLINGS.get(name, [])
    assert options.get("kernel", (3, 5, 7, 9)) == (3, 5, 7, 9)


@pytest.mark.parametrize("name", WORKLOADS)
@pytest.mark.parametrize(
    ("loss", "optimizer"),
    [*((loss, "adam") for loss in LOSSES), *(("crossentropy", optimizer) for optimizer in OPTIMIZERS)],
)
def test_every_loss_and_optimizer_updates_every_weight(name: str, loss: str, optimizer: str) -> None:
    workload = load(name)
    changes = dict(SMALL[name], dropout=0.0, loss=loss, optimizer=optimizer, lr=1e-2)
    config = Config(workload.space.default(), **changes)
    workload.space.check(config)
    model = build(workload, config)
    before = [weight.detach().clone() for weight in model.parameters()]
    batch = samples(name, 8), torch.arange(8) % 2
    optimizer_instance = workload.optimizer(model, config)
    losses = [float(workload.step(model, batch, optimizer_instance, config)) for _ in range(3)]
    assert all(np.isfinite(losses))
    assert all(not torch.equal(old, new) for old, new in zip(before, model.parameters()))
    if optimizer != "ftrl":  # whose first step nearly resets the weights
        assert losses[-1] < losses[0]


def test_losses_match_keras() -> None:
    outputs, targets = torch.tensor([[0.2, 0.5, 0.3], [0.1, 0.1, 0.8]]).log(), torch.tensor([1, 0])
    logs = np.log([0.5, 0.1])
    assert float(poisson(outputs, targets)) == pytest.approx(((1 - logs) / 3).mean(), rel=1e-5)
    assert float(kl_divergence(outputs, targets)) == pytest.approx(-logs.mean(), rel=1e-4)
    entropy = functional.cross_entropy(outputs, targets)
    assert torch.allclose(poisson(outputs, targets), (1 + entropy) / 3, rtol=1e-5)


@pytest.mark.parametrize("loss", LOSSES)
def test_loss_is_finite_for_confident_errors(loss: str) -> None:
    outputs = torch.tensor([[200.0, -200.0]], requires_grad=True)
    value = LOSSES[loss](outputs, torch.tensor([1]))
    value.backward()
    assert torch.isfinite(value)
    assert torch.isfinite(outputs.grad).all()


VARIATIONS = [(name, {}) for name in WORKLOADS]
VARIATIONS += [(name, dict(SMALL[name], pooling=pooling)) for name, kinds in POOLINGS.items() for pooling in kinds]


@pytest.mark.parametrize(("name", "changes"), VARIATIONS)
def test_export_and_quantization_keep_the_outputs(name: str, changes: dict, tmp_path: Path) -> None:
    workload = load(name)
    network = build(workload, Config(workload.space.default(), **changes)).eval()
    inputs = samples(name, 32)
    exact = export(network, [inputs], tmp_path / "exact.onnx")
    check(network, exact)
    precision = "int8-dynamic" if name == LSTM else "int8"
    compressor = method_named(precision).compressor
    excluded = compressor.compress_onnx(exact, tmp_path / "int8.onnx", {"input0": inputs.numpy()})
    assert excluded == ()
    expected = outputs_of(exact, inputs)
    assert np.abs(outputs_of(tmp_path / "int8.onnx", inputs) - expected).max() < 0.15 * np.abs(expected).max()


@pytest.mark.parametrize(("name", "changes"), [variation for variation in VARIATIONS if variation[0] != LSTM])
def test_channels_can_be_pruned(name: str, changes: dict) -> None:
    workload = load(name)
    network = build(workload, Config(workload.space.default(), **changes))
    before, inputs = sum(weight.numel() for weight in network.parameters()), samples(name, 2)
    ChannelPruner(network, [inputs], share=0.5).prune()
    assert sum(weight.numel() for weight in network.parameters()) < before
    network.train()
    network(inputs).square().mean().backward()


def test_lstm_channels_cannot_be_pruned() -> None:
    workload = load(LSTM)
    network = build(workload, Config(workload.space.default(), **SMALL[LSTM]))
    with pytest.raises(ModelError, match="channels cannot be removed from a network with recurrent layers"):
        ChannelPruner(network, [samples(LSTM, 2)], share=0.5).prune()


def test_kernel_that_leaves_no_pixels_is_rejected() -> None:
    workload = load(IMAGE_CNN)
    workload.check(Config(workload.space.default(), kernel=27))
    with pytest.raises(Rejected, match="kernel 28 leaves no pixels of a 28x28 image to pool"):
        workload.check(Config(workload.space.default(), kernel=28))


@pytest.mark.parametrize("name", [RESNET, TEXT_CNN, LSTM])
def test_missing_data_file_is_an_error(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ONEFOLD_DATA", str(tmp_path))
    monkeypatch.setattr("platformdirs.user_cache_dir", lambda name: str(tmp_path / name))
    with pytest.raises(DatasetError, match="is missing"):
        load(name).data()


def trajectory(weight: torch.Tensor, gradients: list[float], optimizer: torch.optim.Optimizer) -> list[float]:
    """Return the first weight after each step."""
    values = []
    for gradient in gradients:
        weight.grad = torch.full_like(weight, gradient)
        optimizer.step()
        values.append(float(weight.detach().flatten()[0]))
    return values


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, [0.4, -0.16 / 2.6]),
        (dict(l1=0.1, l2=0.25), [0.2, -0.38 / 3.1]),
        (dict(l1=0.1, beta=0.25), [0.2, -0.38 / 3.1]),
    ],
)
def test_ftrl_matches_manual_computation(options: dict, expected: list[float]) -> None:
    """Accumulators 0.09, 0.25, 1.69 have the roots 0.3, 0.5, 1.3; linear is 0.4 - 0.4 · 2 = -0.4 after one step."""
    weight = torch.nn.Parameter(torch.tensor([2.0]))
    optimizer = Ftrl([weight], lr=0.5, initial_accumulator_value=0.09, **options)
    assert trajectory(weight, [0.4, 1.2], optimizer) == pytest.approx(expected)


@pytest.mark.parametrize("start", [0.0, 0.7])
def test_ftrl_is_adagrad_after_the_first_step(start: float) -> None:
    gradients, lr = [0.3, -0.2, 0.5, 0.1, -0.9], 0.05
    offset = start * (0.1 / (0.1 + gradients[0] ** 2)) ** 0.5
    ours, theirs = (torch.nn.Parameter(torch.tensor([begin])) for begin in (start, start - offset))
    adagrad = torch.optim.Adagrad([theirs], lr=lr, initial_accumulator_value=0.1, eps=0)
    assert trajectory(ours, gradients, Ftrl([ours], lr=lr)) == pytest.approx(
        trajectory(theirs, gradients, adagrad), abs=1e-6
    )


def test_ftrl_resumes_from_its_state_dict() -> None:
    whole, parts = (torch.nn.Parameter(torch.tensor([[0.5, 0.5]])) for _ in range(2))
    expected = trajectory(whole, [0.3, -0.2, 0.5], Ftrl([whole], lr=0.1))
    first = Ftrl([parts], lr=0.1)
    trajectory(parts, [0.3, -0.2], first)
    second = Ftrl([parts], lr=0.7)
    second.load_state_dict(first.state_dict())
    assert trajectory(parts, [0.5], second) == expected[2:]


def test_ftrl_calls_the_closure() -> None:
    weight = torch.nn.Parameter(torch.tensor([1.0]))
    optimizer = Ftrl([weight, torch.nn.Parameter(torch.ones(1))])

    def closure() -> torch.Tensor:
        loss = weight.square().sum()
        loss.backward()
        return loss.detach()

    assert float(optimizer.step(closure)) == 1
    assert float(weight.detach()) != 1


@pytest.mark.parametrize(
    "options", [dict(lr=0), dict(initial_accumulator_value=0), dict(learning_rate_power=0.5), dict(l1=-1)]
)
def test_ftrl_rejects_invalid_settings(options: dict) -> None:
    with pytest.raises(InputError, match="Ftrl needs lr > 0"):
        Ftrl([torch.nn.Parameter(torch.ones(1))], **options)
