"""The subjects of the impact study: spaces as in its table 2, losses and optimisers as Keras has them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnxruntime
import pytest
import torch
from torch.nn import functional

from onefold import Choice, Config, Rejected, Workload
from onefold.compression import ChannelPruner, quantize_onnx
from onefold.serving.export import check, export
from onefold.vocabulary.errors import DatasetError, InputError, ModelError
from onefold.vocabulary.workload_reference import load
from onefold.workloads.ftrl import Ftrl
from onefold.workloads.impact_study.workload import LOSSES, OPTIMIZERS, kl_divergence, poisson

IMAGE_CNN, RESNET, TEXT_CNN, LSTM = SUBJECTS = ("paper-image-cnn", "paper-resnet", "paper-text-cnn", "paper-lstm")
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


def built(workload: Workload, config: Config) -> torch.nn.Module:
    torch.manual_seed(0)
    return workload.build(config)


def answers(path: Path, inputs: torch.Tensor) -> np.ndarray:
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    return session.run(None, {"input0": inputs.numpy()})[0]


@pytest.mark.parametrize("name", SUBJECTS)
def test_the_space_is_that_of_the_table(name: str) -> None:
    space = load(name).space
    assert list(space.groups) == ["architecture", "layers", "training"]
    assert dict(space.default()) == DEFAULTS[name]
    options = {key: parameter.options for key, parameter in space.parameters.items() if isinstance(parameter, Choice)}
    assert options["activation"] == ("tanh", "relu", "sigmoid")
    assert options["loss"] == ("crossentropy", "poisson", "kl_divergence")
    assert options["optimizer"] == ("sgd", "rmsprop", "adam", "adadelta", "adagrad", "adamax", "nadam", "ftrl")
    assert list(options.get("pooling", [])) == POOLINGS.get(name, [])
    assert options.get("kernel", (3, 5, 7, 9)) == (3, 5, 7, 9)


@pytest.mark.parametrize("name", SUBJECTS)
@pytest.mark.parametrize(
    ("loss", "optimizer"), [*((loss, "adam") for loss in LOSSES), *(("crossentropy", each) for each in OPTIMIZERS)]
)
def test_every_loss_and_every_optimizer_moves_every_weight(name: str, loss: str, optimizer: str) -> None:
    workload = load(name)
    changes = dict(SMALL[name], dropout=0.0, loss=loss, optimizer=optimizer, lr=1e-2)
    config = Config(workload.space.default(), **changes)
    workload.space.check(config)
    model = built(workload, config)
    before = [weight.detach().clone() for weight in model.parameters()]
    batch = samples(name, 8), torch.arange(8) % 2
    rule = workload.optimizer(model, config)
    losses = [float(workload.step(model, batch, rule, config)) for _ in range(3)]
    assert all(np.isfinite(losses))
    assert all(not torch.equal(old, new) for old, new in zip(before, model.parameters()))
    if optimizer != "ftrl":  # which begins by forgetting what the weights were
        assert losses[-1] < losses[0]


def test_losses_are_what_keras_makes_of_probabilities() -> None:
    outputs, targets = torch.tensor([[0.2, 0.5, 0.3], [0.1, 0.1, 0.8]]).log(), torch.tensor([1, 0])
    logs = np.log([0.5, 0.1])
    assert float(poisson(outputs, targets)) == pytest.approx(((1 - logs) / 3).mean(), rel=1e-5)
    assert float(kl_divergence(outputs, targets)) == pytest.approx(-logs.mean(), rel=1e-4)
    entropy = functional.cross_entropy(outputs, targets)
    assert torch.allclose(poisson(outputs, targets), (1 + entropy) / 3, rtol=1e-5)


@pytest.mark.parametrize("loss", LOSSES)
def test_a_loss_stays_finite_where_a_network_is_sure_and_wrong(loss: str) -> None:
    outputs = torch.tensor([[200.0, -200.0]], requires_grad=True)
    found = LOSSES[loss](outputs, torch.tensor([1]))
    found.backward()
    assert torch.isfinite(found)
    assert torch.isfinite(outputs.grad).all()


CORNERS = [(name, {}) for name in SUBJECTS]
CORNERS += [(name, dict(SMALL[name], pooling=pooling)) for name, kinds in POOLINGS.items() for pooling in kinds]


@pytest.mark.parametrize(("name", "changes"), CORNERS)
def test_each_is_exported_and_quantised(name: str, changes: dict, tmp_path: Path) -> None:
    workload = load(name)
    network = built(workload, Config(workload.space.default(), **changes)).eval()
    inputs = samples(name, 32)
    exact = export(network, [inputs], tmp_path / "exact.onnx")
    check(network, exact)
    precision = "int8-dynamic" if name == LSTM else "int8"
    left = quantize_onnx(exact, tmp_path / "int8.onnx", precision, {"input0": inputs.numpy()})
    assert left == ()
    wanted = answers(exact, inputs)
    assert np.abs(answers(tmp_path / "int8.onnx", inputs) - wanted).max() < 0.15 * np.abs(wanted).max()


@pytest.mark.parametrize(("name", "changes"), [corner for corner in CORNERS if corner[0] != LSTM])
def test_channels_are_taken_out(name: str, changes: dict) -> None:
    workload = load(name)
    network = built(workload, Config(workload.space.default(), **changes))
    before, inputs = sum(weight.numel() for weight in network.parameters()), samples(name, 2)
    ChannelPruner(network, [inputs], share=0.5).step()
    assert sum(weight.numel() for weight in network.parameters()) < before
    network.train()
    network(inputs).square().mean().backward()


def test_channels_of_an_lstm_cannot_be_taken_out() -> None:
    workload = load(LSTM)
    network = built(workload, Config(workload.space.default(), **SMALL[LSTM]))
    with pytest.raises(ModelError, match="channels cannot be taken out of a network with recurrent layers"):
        ChannelPruner(network, [samples(LSTM, 2)], share=0.5).step()


def test_a_kernel_must_leave_something_to_pool() -> None:
    workload = load(IMAGE_CNN)
    workload.check(Config(workload.space.default(), kernel=27))
    with pytest.raises(Rejected, match="a kernel of 28 leaves nothing of a picture of 28 pixels to pool"):
        workload.check(Config(workload.space.default(), kernel=28))


@pytest.mark.parametrize("name", [RESNET, TEXT_CNN, LSTM])
def test_missing_data_are_told(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ONEFOLD_DATA", str(tmp_path))
    monkeypatch.setattr("platformdirs.user_cache_dir", lambda name: str(tmp_path / name))
    with pytest.raises(DatasetError, match="is missing"):
        load(name).data()


def follow(weight: torch.Tensor, gradients: list[float], rule: torch.optim.Optimizer) -> list[float]:
    """The first weight after each of the steps."""
    way = []
    for gradient in gradients:
        weight.grad = torch.full_like(weight, gradient)
        rule.step()
        way.append(float(weight.detach().flatten()[0]))
    return way


@pytest.mark.parametrize(
    ("options", "wanted"),
    [
        ({}, [0.4, -0.16 / 2.6]),
        (dict(l1=0.1, l2=0.25), [0.2, -0.38 / 3.1]),
        (dict(l1=0.1, beta=0.25), [0.2, -0.38 / 3.1]),
    ],
)
def test_ftrl_by_hand(options: dict, wanted: list[float]) -> None:
    """Accumulators 0.09, 0.25, 1.69 have the roots 0.3, 0.5, 1.3; linear is 0.4 - 0.4 · 2 = -0.4 after one step."""
    weight = torch.nn.Parameter(torch.tensor([2.0]))
    rule = Ftrl([weight], lr=0.5, initial_accumulator_value=0.09, **options)
    assert follow(weight, [0.4, 1.2], rule) == pytest.approx(wanted)


@pytest.mark.parametrize("start", [0.0, 0.7])
def test_ftrl_is_adagrad_but_for_its_first_step(start: float) -> None:
    gradients, lr = [0.3, -0.2, 0.5, 0.1, -0.9], 0.05
    forgotten = start * (0.1 / (0.1 + gradients[0] ** 2)) ** 0.5
    ours, theirs = (torch.nn.Parameter(torch.tensor([begin])) for begin in (start, start - forgotten))
    adagrad = torch.optim.Adagrad([theirs], lr=lr, initial_accumulator_value=0.1, eps=0)
    assert follow(ours, gradients, Ftrl([ours], lr=lr)) == pytest.approx(follow(theirs, gradients, adagrad), abs=1e-6)


def test_ftrl_goes_on_from_what_was_saved() -> None:
    whole, parts = (torch.nn.Parameter(torch.tensor([[0.5, 0.5]])) for _ in range(2))
    wanted = follow(whole, [0.3, -0.2, 0.5], Ftrl([whole], lr=0.1))
    first = Ftrl([parts], lr=0.1)
    follow(parts, [0.3, -0.2], first)
    second = Ftrl([parts], lr=0.7)
    second.load_state_dict(first.state_dict())
    assert follow(parts, [0.5], second) == wanted[2:]


def test_ftrl_computes_a_loss_again_where_it_is_asked_to() -> None:
    weight = torch.nn.Parameter(torch.tensor([1.0]))
    rule = Ftrl([weight, torch.nn.Parameter(torch.ones(1))])

    def closure() -> torch.Tensor:
        loss = weight.square().sum()
        loss.backward()
        return loss.detach()

    assert float(rule.step(closure)) == 1
    assert float(weight.detach()) != 1


@pytest.mark.parametrize(
    "options", [dict(lr=0), dict(initial_accumulator_value=0), dict(learning_rate_power=0.5), dict(l1=-1)]
)
def test_ftrl_refuses_what_makes_no_sense(options: dict) -> None:
    with pytest.raises(InputError, match="Ftrl takes lr and initial_accumulator_value above 0"):
        Ftrl([torch.nn.Parameter(torch.ones(1))], **options)
