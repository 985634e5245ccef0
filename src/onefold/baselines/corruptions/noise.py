"""Noise, independent for each value."""

from __future__ import annotations

import numpy as np

from onefold.baselines.corruptions.corruption import Corruption, Planes, normal


def _gaussian(planes: Planes, deviation: float, rng: np.random.RandomState) -> Planes:
    return planes + deviation * normal(rng, *planes.shape)


def _shot(planes: Planes, photons: float, rng: np.random.RandomState) -> Planes:
    return rng.poisson(planes * photons).astype(np.float32) / photons


def _impulse(planes: Planes, share: float, rng: np.random.RandomState) -> Planes:
    draws = rng.random_sample(planes.shape)
    changed = np.where(draws < share, np.float32(1), planes)
    changed[draws < share / 2] = 0
    return changed


def _speckle(planes: Planes, deviation: float, rng: np.random.RandomState) -> Planes:
    return planes * (1 + deviation * normal(rng, *planes.shape))


KINDS = (
    Corruption("gaussian_noise", "Gaussian noise, as in low light", (0.04, 0.06, 0.08, 0.09, 0.10), _gaussian),
    Corruption("shot_noise", "shot noise of single photons (Poisson)", (500, 250, 100, 75, 50), _shot),
    Corruption("impulse_noise", "salt-and-pepper noise, as from bit errors", (0.01, 0.02, 0.03, 0.05, 0.07), _impulse),
    Corruption("speckle_noise", "Gaussian noise proportional to the value", (0.06, 0.1, 0.12, 0.16, 0.2), _speckle),
)
