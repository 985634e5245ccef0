"""What batch norms know of the data, measured."""

from __future__ import annotations

import pytest
import torch
from small_networks import KINDS, cut, normed
from torch import nn

from onefold.retraining.batch_norm import batch_norms, reestimate_statistics

DATA = 3.0 + 2.0 * torch.randn(64, 4, generator=torch.Generator().manual_seed(0)) * torch.tensor([1.0, 2.0, 0.5, 4.0])
TARGETS = torch.zeros(64, dtype=torch.long)


def test_one_batch_gives_exactly_its_mean_and_variance() -> None:
    norm = nn.BatchNorm1d(4)
    assert reestimate_statistics(nn.Sequential(norm), [(DATA, TARGETS)]) == 64
    torch.testing.assert_close(norm.running_mean, DATA.mean(0))
    torch.testing.assert_close(norm.running_var, DATA.var(0))


def test_batches_of_one_size_give_the_mean_of_all_and_the_mean_of_their_variances() -> None:
    norm = nn.BatchNorm1d(4)
    assert reestimate_statistics(nn.Sequential(norm), cut((DATA, TARGETS), 16)) == 64
    torch.testing.assert_close(norm.running_mean, DATA.mean(0))
    torch.testing.assert_close(norm.running_var, torch.stack([part.var(0) for part in DATA.split(16)]).mean(0))
    assert torch.allclose(norm.running_var, DATA.var(0), rtol=0.15)


def test_what_was_known_before_does_not_count() -> None:
    known, fresh = nn.BatchNorm1d(4), nn.BatchNorm1d(4)
    for _ in range(3):
        known(100 + DATA)
    for norm in (known, fresh):
        reestimate_statistics(nn.Sequential(norm), [(DATA, TARGETS)])
    assert torch.equal(known.running_mean, fresh.running_mean)
    assert torch.equal(known.running_var, fresh.running_var)


def test_pictures_are_averaged_over_their_places() -> None:
    pictures = 5 + torch.randn(16, 3, 6, 6)
    norm = nn.BatchNorm2d(3, momentum=0.3)
    reestimate_statistics(nn.Sequential(norm), [(pictures, torch.zeros(16))])
    torch.testing.assert_close(norm.running_mean, pictures.mean((0, 2, 3)))
    torch.testing.assert_close(norm.running_var, pictures.var((0, 2, 3)))


@pytest.mark.parametrize("training", [False, True])
def test_momentum_and_modes_of_norms_weights_and_gradients_stay(training: bool) -> None:
    network = KINDS["residual"].network().train(training)
    norms = batch_norms(network)
    norms[0].momentum, norms[1].momentum = 0.3, None
    norms[2].training = not training
    before = [(norm.momentum, norm.training) for norm in norms]
    weights = [weight.detach().clone() for weight in network.parameters()]
    reestimate_statistics(network, [KINDS["residual"].batch(8)])
    assert [(norm.momentum, norm.training) for norm in norms] == before
    assert all(torch.equal(one, other) for one, other in zip(weights, network.parameters()))
    assert all(weight.grad is None for weight in network.parameters())


def test_momentum_and_modes_are_put_back_when_a_batch_does_not_fit() -> None:
    network = normed().eval()
    with pytest.raises(RuntimeError):
        reestimate_statistics(network, [(torch.randn(4, 3), torch.zeros(4))])
    assert all(norm.momentum == 0.1 and not norm.training for norm in batch_norms(network))


def test_dropout_does_not_change_what_is_measured() -> None:
    norm = nn.BatchNorm1d(4)
    reestimate_statistics(nn.Sequential(nn.Dropout(0.9), norm).train(), [(DATA, TARGETS)])
    torch.testing.assert_close(norm.running_mean, DATA.mean(0))


def test_only_norms_that_keep_statistics_are_measured() -> None:
    network = nn.Sequential(nn.BatchNorm1d(4), nn.BatchNorm1d(4, track_running_stats=False), nn.LayerNorm(4))
    assert batch_norms(network) == [network[0]]
    assert reestimate_statistics(nn.Sequential(nn.LayerNorm(4)), [(DATA, TARGETS)]) == 64


# What is wrong


def test_a_last_batch_of_one_sample_does_no_harm() -> None:
    network = normed()
    reestimate_statistics(network, cut(KINDS["normed"].batch(9), 8))


def test_every_sample_counts_the_same() -> None:
    norm = nn.BatchNorm1d(4)
    reestimate_statistics(nn.Sequential(norm), cut((DATA, TARGETS), 60))
    torch.testing.assert_close(norm.running_mean, DATA.mean(0))


def test_the_modes_of_other_modules_are_put_back() -> None:
    network = KINDS["residual"].network().train()
    reestimate_statistics(network, [KINDS["residual"].batch(8)])
    assert all(module.training for module in network.modules())
