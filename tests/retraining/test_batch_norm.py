"""Re-estimation of BatchNorm statistics."""

from __future__ import annotations

import pytest
import torch
from small_networks import KINDS, cut, normed
from torch import nn

from onefold.retraining.batch_norm import batch_norms, reestimate_statistics

DATA = 3.0 + 2.0 * torch.randn(64, 4, generator=torch.Generator().manual_seed(0)) * torch.tensor([1.0, 2.0, 0.5, 4.0])
TARGETS = torch.zeros(64, dtype=torch.long)


def test_one_batch_yields_its_mean_and_variance() -> None:
    norm = nn.BatchNorm1d(4)
    assert reestimate_statistics(nn.Sequential(norm), [(DATA, TARGETS)]) == 64
    torch.testing.assert_close(norm.running_mean, DATA.mean(0))
    torch.testing.assert_close(norm.running_var, DATA.var(0))


def test_equal_batches_yield_the_mean_and_the_mean_variance() -> None:
    norm = nn.BatchNorm1d(4)
    assert reestimate_statistics(nn.Sequential(norm), cut((DATA, TARGETS), 16)) == 64
    torch.testing.assert_close(norm.running_mean, DATA.mean(0))
    torch.testing.assert_close(norm.running_var, torch.stack([part.var(0) for part in DATA.split(16)]).mean(0))
    assert torch.allclose(norm.running_var, DATA.var(0), rtol=0.15)


def test_previous_statistics_are_discarded() -> None:
    known, fresh = nn.BatchNorm1d(4), nn.BatchNorm1d(4)
    for _ in range(3):
        known(100 + DATA)
    for norm in (known, fresh):
        reestimate_statistics(nn.Sequential(norm), [(DATA, TARGETS)])
    assert torch.equal(known.running_mean, fresh.running_mean)
    assert torch.equal(known.running_var, fresh.running_var)


def test_images_are_averaged_over_pixels() -> None:
    images = 5 + torch.randn(16, 3, 6, 6)
    norm = nn.BatchNorm2d(3, momentum=0.3)
    reestimate_statistics(nn.Sequential(norm), [(images, torch.zeros(16))])
    torch.testing.assert_close(norm.running_mean, images.mean((0, 2, 3)))
    torch.testing.assert_close(norm.running_var, images.var((0, 2, 3)))


@pytest.mark.parametrize("training", [False, True])
def test_momentum_modes_weights_and_gradients_are_preserved(training: bool) -> None:
    network = KINDS["residual"].network().train(training)
    norms = batch_norms(network)
    norms[0].momentum, norms[1].momentum = 0.3, None
    norms[2].training = not training
    before = [(norm.momentum, norm.training) for norm in norms]
    weights = [weight.detach().clone() for weight in network.parameters()]
    reestimate_statistics(network, [KINDS["residual"].batch(8)])
    assert [(norm.momentum, norm.training) for norm in norms] == before
    assert all(torch.equal(item, other) for item, other in zip(weights, network.parameters()))
    assert all(weight.grad is None for weight in network.parameters())


def test_momentum_and_modes_are_restored_after_an_error() -> None:
    network = normed().eval()
    with pytest.raises(RuntimeError):
        reestimate_statistics(network, [(torch.randn(4, 3), torch.zeros(4))])
    assert all(norm.momentum == 0.1 and not norm.training for norm in batch_norms(network))


def test_dropout_is_inactive() -> None:
    norm = nn.BatchNorm1d(4)
    reestimate_statistics(nn.Sequential(nn.Dropout(0.9), norm).train(), [(DATA, TARGETS)])
    torch.testing.assert_close(norm.running_mean, DATA.mean(0))


def test_only_norms_with_running_statistics_are_used() -> None:
    network = nn.Sequential(nn.BatchNorm1d(4), nn.BatchNorm1d(4, track_running_stats=False), nn.LayerNorm(4))
    assert batch_norms(network) == [network[0]]
    assert reestimate_statistics(nn.Sequential(nn.LayerNorm(4)), [(DATA, TARGETS)]) == 64


# Regressions


def test_a_last_batch_of_one_sample_is_skipped() -> None:
    network = normed()
    reestimate_statistics(network, cut(KINDS["normed"].batch(9), 8))


def test_every_sample_has_equal_weight() -> None:
    norm = nn.BatchNorm1d(4)
    reestimate_statistics(nn.Sequential(norm), cut((DATA, TARGETS), 60))
    torch.testing.assert_close(norm.running_mean, DATA.mean(0))


def test_modes_of_other_modules_are_restored() -> None:
    network = KINDS["residual"].network().train()
    reestimate_statistics(network, [KINDS["residual"].batch(8)])
    assert all(module.training for module in network.modules())
