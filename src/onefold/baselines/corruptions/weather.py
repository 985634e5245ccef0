"""Weather: snow, frost, fog, brightness, spatter."""

from __future__ import annotations

import numpy as np
from scipy import ndimage

from onefold.baselines.corruptions.blur import softened, streaked
from onefold.baselines.corruptions.corruption import Corruption, Planes, luminance, normal, tint
from onefold.baselines.corruptions.resampling import magnified

ICE, WATER, MUD = (219, 240, 255), (175, 238, 238), (63, 42, 20)  # red, green, blue
CRYSTALS = 1 / 40  # share of the pixels that seed an ice crystal
ARM = (6, 2.0)  # radius and sigma of the arm of a crystal
FROM_ABOVE_LEFT = np.array([[-2, -1, 0], [-1, 0, 1], [0, 1, 2]], dtype=np.float32)  # light direction
OPAQUE = 0.8  # coverage below which mud is removed
TINY = 1e-6


def plasma(rng: np.random.RandomState, count: int, height: int, width: int, decay: float) -> Planes:
    """Return fractal noise (count, 1, height, width) from 0 to 1, by the diamond-square algorithm on a torus.

    The disturbance shrinks by the square of `decay` per level, as the published parameters assume.
    """
    side = 1 << (max(height, width, 2) - 1).bit_length()
    field = np.zeros((count, side, side), dtype=np.float32)
    step, disturbance = side, 1.0

    def disturbed(neighbors: Planes) -> Planes:
        noise = rng.uniform(-disturbance, disturbance, neighbors.shape).astype(np.float32)
        return neighbors / 4 + noise

    while step >= 2:
        half = step // 2
        corners = field[:, ::step, ::step]
        across, along = np.roll(corners, -1, axis=2), np.roll(corners, -1, axis=1)
        centers = disturbed(corners + across + along + np.roll(along, -1, axis=2))
        field[:, half::step, half::step] = centers
        field[:, ::step, half::step] = disturbed(corners + across + centers + np.roll(centers, 1, axis=1))
        field[:, half::step, ::step] = disturbed(corners + along + centers + np.roll(centers, 1, axis=2))
        step, disturbance = half, disturbance / decay**2
    return _spanning(field[:, None, :height, :width])


def _spanning(field: Planes) -> Planes:
    """Rescale each image to the range 0 to 1."""
    low, high = field.min(axis=(2, 3), keepdims=True), field.max(axis=(2, 3), keepdims=True)
    spanning: Planes = (field - low) / np.maximum(high - low, TINY)
    return spanning


def _snow(planes: Planes, level: tuple[float, ...], rng: np.random.RandomState) -> Planes:
    mean, deviation, zoom, threshold, radius, sigma, kept = level
    count, _, height, width = planes.shape
    flakes = magnified(mean + deviation * normal(rng, count, 1, height, width), zoom)
    flakes[flakes < threshold] = 0
    falling = streaked(np.clip(flakes, 0, 1), rng.uniform(-135, -45, len(planes)), int(radius), sigma)
    whiter = np.maximum(planes, luminance(planes) * 1.5 + 0.5)
    return kept * planes + (1 - kept) * whiter + falling + falling[..., ::-1, ::-1]


def _frost(planes: Planes, level: tuple[float, float], rng: np.random.RandomState) -> Planes:
    # CIFAR-10-C blends in photographs of frosted glass; this is procedural, to need no data files.
    kept, strength = level
    return kept * planes + strength * _ice(rng, planes) * tint(planes, ICE)


def _ice(rng: np.random.RandomState, planes: Planes) -> Planes:
    """Return crystals with six arms on fractal noise."""
    count, _, height, width = planes.shape
    draws = rng.random_sample((count, 1, height, width)).astype(np.float32)
    seeds = np.where(draws < CRYSTALS, 1 - draws / (2 * CRYSTALS), np.float32(0))
    turned = rng.uniform(0, 60, len(planes))
    arms = np.maximum.reduce([streaked(seeds, turned + 60 * arm, *ARM) for arm in range(6)])
    crystals = arms / np.maximum(arms.max(axis=(2, 3), keepdims=True), TINY)
    ice: Planes = np.clip(0.25 + 0.5 * plasma(rng, count, height, width, 2.0) + 0.75 * crystals, 0, 1)
    return ice


def _fog(planes: Planes, level: tuple[float, float], rng: np.random.RandomState) -> Planes:
    thickness, decay = level
    count, _, height, width = planes.shape
    brightest = planes.max(axis=(1, 2, 3), keepdims=True)
    foggy: Planes = planes + thickness * plasma(rng, count, height, width, decay)
    foggy *= brightest / (brightest + thickness)
    return foggy


def _brightness(planes: Planes, more: float, _: np.random.RandomState) -> Planes:
    # Scaling all channels alike preserves hue and saturation.
    value = planes.max(axis=1, keepdims=True)
    wanted = np.minimum(value + more, 1)
    brighter: Planes = np.where(value > 0, planes * (wanted / np.maximum(value, TINY)), wanted)
    return brighter


def _spatter(planes: Planes, level: tuple[float, ...], rng: np.random.RandomState) -> Planes:
    mean, deviation, sigma, threshold, strength, mud = level
    count, _, height, width = planes.shape
    wet = softened(mean + deviation * normal(rng, count, 1, height, width), sigma)
    if mud:
        cover = softened((wet > threshold).astype(np.float32), strength)
        cover[cover < OPAQUE] = 0
        muddy: Planes = planes * (1 - cover) + cover * tint(planes, MUD)
        return muddy
    depth = np.maximum(wet - threshold, 0)
    lit = depth + np.maximum(ndimage.correlate(depth, FROM_ABOVE_LEFT[None, None], mode="nearest"), 0)
    sheen = np.where(depth > 0, lit, np.float32(0))
    sheen /= np.maximum(sheen.max(axis=(2, 3), keepdims=True), TINY)
    return planes + strength * sheen * tint(planes, WATER)


KINDS = (
    Corruption("snow", "falling snow, and whitened colors", (
        (0.1, 0.2, 1, 0.6, 8, 3, 0.95), (0.1, 0.2, 1, 0.5, 10, 4, 0.9), (0.15, 0.3, 1.75, 0.55, 10, 4, 0.9),
        (0.25, 0.3, 2.25, 0.6, 12, 6, 0.85), (0.3, 0.3, 1.25, 0.65, 14, 12, 0.8)), _snow),
    Corruption("frost", "ice crystals on the lens, procedural",
               ((1, 0.2), (1, 0.3), (0.9, 0.4), (0.85, 0.4), (0.75, 0.45)), _frost),
    Corruption("fog", "fog (fractal noise)", ((0.2, 3), (0.5, 3), (0.75, 2.5), (1, 2), (1.5, 1.75)), _fog),
    Corruption("brightness", "higher brightness", (0.05, 0.1, 0.15, 0.2, 0.3), _brightness),
    Corruption("spatter", "drops of water on the lens; mud at severity 4 and 5", (
        (0.62, 0.1, 0.7, 0.7, 0.5, False), (0.65, 0.1, 0.8, 0.7, 0.5, False), (0.65, 0.3, 1, 0.69, 0.5, False),
        (0.65, 0.1, 0.7, 0.69, 0.6, True), (0.65, 0.1, 0.5, 0.68, 0.6, True)), _spatter),
)  # fmt: skip
