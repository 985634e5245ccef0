"""Corruptions keep shape and type, are reproducible, and grow with the severity."""

from __future__ import annotations

import re
import tracemalloc
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import ndimage
from sklearn.datasets import load_digits

from onefold.baselines.corruptions import CORRUPTIONS, FAMILIES, corrupted
from onefold.baselines.corruptions.resampling import areas, linear, repeated, stretched
from onefold.baselines.corruptions.weather import plasma
from onefold.vocabulary.errors import InputError

KINDS = CORRUPTIONS[1:]
DRAWN = {
    "gaussian_noise", "shot_noise", "impulse_noise", "speckle_noise", "motion_blur", "snow", "frost", "fog",
    "elastic_transform", "spatter",
}  # fmt: skip
# Severities of these are sorts rather than degrees: paler and gaudier, sheared and bent, water and mud. More frost also
# darkens what it does not whiten, which evens out in the mean.
OF_SEVERAL_SORTS = {"saturate", "elastic_transform", "spatter", "frost"}
BY_DEGREES = [kind for kind in KINDS if kind not in OF_SEVERAL_SORTS]
TOO_COARSE = {"pixelate", "snow"}  # for five degrees on pictures of 8x8 pixels
COLORS = [kind for kind in KINDS if kind != "saturate"]


def digits() -> np.ndarray:
    return np.rint(load_digits().images[:300] * 255 / 16).astype(np.uint8)


def smooth(*shape: int, seed: int = 0) -> np.ndarray:
    """Return images with large and small patches, from black to white."""
    noise = np.random.RandomState(seed).standard_normal(shape)
    sigma = (0, 1.5, 1.5, 0)[: len(shape)]
    soft = ndimage.gaussian_filter(noise, sigma)
    low, high = (f(soft, axis=(1, 2), keepdims=True) for f in (np.min, np.max))
    return np.rint((soft - low) / np.maximum(high - low, 1e-9) * 255).astype(np.uint8)


def change(images: np.ndarray, kind: str, severity: int) -> float:
    return float(np.abs(corrupted(images, kind, severity).astype(float) - images).mean())


def likeness(images: np.ndarray, kind: str, severity: int) -> float:
    """Return the mean correlation of the corrupted with the original images."""
    pairs = zip(images, corrupted(images, kind, severity))
    return float(np.mean([np.corrcoef(before.ravel(), after.ravel())[0, 1] for before, after in pairs]))


def flat(value: int, *shape: int) -> np.ndarray:
    return np.full(shape, value, dtype=np.uint8)


@pytest.mark.parametrize("kind", CORRUPTIONS)
@pytest.mark.parametrize(
    "shape", [(3, 8, 8), (2, 9, 5, 1), (3, 20, 33, 3), (2, 3, 2), (2, 1, 1, 3), (0, 8, 8), (2, 8, 8, 4)]
)
def test_shape_and_type_are_kept_and_the_input_is_unchanged(kind: str, shape: tuple[int, ...]) -> None:
    images = np.random.RandomState(0).randint(0, 256, shape).astype(np.uint8)
    before = images.copy()
    for severity in (1, 3, 5):
        result = corrupted(images, kind, severity)
        assert (result.shape, result.dtype) == (shape, np.uint8)
        assert not np.shares_memory(result, images)
    np.testing.assert_array_equal(images, before)


@pytest.mark.parametrize("kind", CORRUPTIONS)
def test_corruptions_are_reproducible_by_seed(kind: str) -> None:
    images = smooth(20, 16, 16, 3)
    first, again, other = (corrupted(images, kind, 3, seed) for seed in (1, 1, 2))
    np.testing.assert_array_equal(first, again)
    assert (first != other).any() == (kind in DRAWN)


@pytest.mark.parametrize("kind", sorted(DRAWN))
def test_images_get_different_random_numbers(kind: str) -> None:
    image = smooth(1, 16, 16, 3)
    result = corrupted(np.repeat(image, 1500, axis=0), kind, 4)  # more than are worked on together
    assert len({picture.tobytes() for picture in result}) > (40 if kind == "motion_blur" else 1400)  # few directions


def test_natural_images_are_unchanged() -> None:
    for severity in range(1, 6):
        np.testing.assert_array_equal(corrupted(digits(), "natural", severity), digits())


@pytest.mark.parametrize("kind", BY_DEGREES)
def test_a_higher_severity_changes_more(kind: str) -> None:
    assert_changes_grow(smooth(100, 32, 32, 3), kind)


@pytest.mark.parametrize("kind", [kind for kind in BY_DEGREES if kind not in TOO_COARSE])
def test_a_higher_severity_changes_real_digits_more(kind: str) -> None:
    assert_changes_grow(digits(), kind)


def assert_changes_grow(images: np.ndarray, kind: str) -> None:
    changes = [change(images, kind, severity) for severity in range(1, 6)]
    assert all(after >= 0.99 * before for before, after in pairwise(changes)), changes
    assert changes[-1] > 1.2 * changes[0]


def test_more_frost_hides_more() -> None:
    losses = [1 - likeness(smooth(100, 32, 32, 3), "frost", severity) for severity in range(1, 6)]
    assert losses == sorted(losses)
    assert losses[-1] > 2 * losses[0]


@pytest.mark.parametrize("kind", KINDS)
def test_every_severity_changes_something_but_not_everything(kind: str) -> None:
    images = smooth(100, 32, 32, 3)
    for severity in range(1, 6):
        assert 0.3 < change(images, kind, severity) < 100
        assert likeness(images, kind, severity) > 0.4  # the picture can still be made out


@pytest.mark.parametrize("kind", COLORS)
def test_grayscale_matches_equal_channels(kind: str) -> None:
    gray = smooth(200, 16, 16)
    colored = np.repeat(gray[..., None], 3, axis=3)
    assert change(gray, kind, 4) == pytest.approx(change(colored, kind, 4), rel=0.1, abs=0.3)


def test_grayscale_cannot_be_saturated() -> None:
    np.testing.assert_array_equal(corrupted(digits(), "saturate", 5), digits())
    equal = np.repeat(digits()[..., None], 3, axis=3)
    np.testing.assert_array_equal(corrupted(equal, "saturate", 5), equal)


@pytest.mark.parametrize("kind", ["gaussian_blur", "defocus_blur", "motion_blur", "zoom_blur", "contrast", "saturate",
                                  "elastic_transform", "pixelate", "jpeg_compression"])  # fmt: skip
@pytest.mark.parametrize("value", [0, 255])
def test_a_uniform_image_stays_uniform(kind: str, value: int) -> None:
    images = flat(value, 5, 19, 16, 3)
    for severity in (1, 3, 5):
        result = corrupted(images, kind, severity).astype(int)
        assert np.abs(result - value).max() <= (1 if kind == "jpeg_compression" else 0)


@pytest.mark.parametrize(("severity", "deviation"), [(1, 0.04), (5, 0.10)])
def test_gaussian_noise_has_its_deviation(severity: int, deviation: float) -> None:
    result = corrupted(flat(128, 20, 32, 32), "gaussian_noise", severity)
    assert result.std() / 255 == pytest.approx(deviation, rel=0.05)
    assert result.mean() == pytest.approx(128, abs=0.5)


def test_shot_noise_is_poisson() -> None:
    result = corrupted(flat(102, 20, 32, 32), "shot_noise", 5) / 255  # 0.4 of 50 photons
    assert result.std() == pytest.approx(np.sqrt(0.4 * 50) / 50, rel=0.05)
    assert not corrupted(flat(0, 2, 8, 8), "shot_noise", 5).any()  # no light, no noise


def test_impulse_noise_is_salt_and_pepper() -> None:
    result = corrupted(flat(128, 50, 32, 32), "impulse_noise", 5)
    assert np.mean(result == 0) == pytest.approx(0.035, rel=0.1)
    assert np.mean(result == 255) == pytest.approx(0.035, rel=0.1)
    assert set(np.unique(result)) == {0, 128, 255}


def test_speckle_noise_grows_with_the_value() -> None:
    dark, bright = (corrupted(flat(value, 20, 16, 16), "speckle_noise", 1).std() for value in (50, 150))
    assert bright / dark == pytest.approx(3, rel=0.1)


def test_motion_blur_smears_to_one_side() -> None:
    point = flat(0, 50, 21, 21)
    point[:, 10, 10] = 255
    result = corrupted(point, "motion_blur", 5)
    used = result.any(axis=0)
    assert used[:, :11].any()
    assert not used[:, 11:].any() or not used[:, :10].any()


def test_brightness_keeps_hue_and_brightens_black() -> None:
    images = np.array([[[[100, 50, 0], [0, 0, 0]]]], dtype=np.uint8)
    result = corrupted(images, "brightness", 5)[0, 0].tolist()
    assert result[0] == [pytest.approx(176, abs=1), pytest.approx(88, abs=1), 0]
    assert result[1] == [pytest.approx(76, abs=1)] * 3


def test_saturation_goes_down_and_then_up() -> None:
    images = np.array([[[[200, 150, 100]]]], dtype=np.uint8)
    spans = [np.ptp(corrupted(images, "saturate", severity)) for severity in range(1, 6)]
    assert spans[1] < spans[0] < 100 < spans[2] < spans[3]
    assert all(corrupted(images, "saturate", severity).max() == 200 for severity in range(1, 6))


def test_fog_reduces_contrast_and_snow_increases_brightness() -> None:
    images = smooth(50, 32, 32, 3)
    assert corrupted(images, "fog", 5).std() < 0.85 * images.std()
    dark = images // 4
    for kind in ("snow", "frost", "brightness"):
        assert corrupted(dark, kind, 3).mean() > dark.mean() + 10


def test_spatter_is_water_at_low_severity_and_mud_at_high() -> None:
    images = flat(128, 100, 32, 32, 3)
    water, mud = (corrupted(images, "spatter", severity) for severity in (3, 5))
    assert water.min() == 128
    assert mud.min() < 30
    assert mud.max() == 128


def test_pixelate_leaves_fewer_different_columns() -> None:
    images = smooth(1, 32, 32)
    result = corrupted(images, "pixelate", 5)[0]
    assert len(np.unique(result, axis=1).T) == 20  # 0.65 of 32
    assert result.mean() == pytest.approx(images.mean(), abs=8)


def test_jpeg_preserves_smooth_images_and_channels() -> None:
    ramp = np.broadcast_to(np.arange(0, 256, 8, dtype=np.uint8)[:, None], (1, 32, 32))
    assert change(ramp, "jpeg_compression", 1) < 2
    red = flat(0, 1, 24, 40, 3)
    red[..., 0] = 200
    assert np.abs(corrupted(red, "jpeg_compression", 1).astype(int) - red).max() <= 6


def test_elastic_transform_moves_pixels_only() -> None:
    images = smooth(200, 32, 32)
    result = corrupted(images, "elastic_transform", 5)
    assert result.mean() == pytest.approx(images.mean(), rel=0.02)
    assert result.max() <= images.max()


@given(side=st.integers(1, 40), other=st.integers(1, 40), decay=st.floats(1.5, 3.5))
def test_plasma_spans_0_to_1(side: int, other: int, decay: float) -> None:
    clouds = plasma(np.random.RandomState(0), 2, side, other, decay)
    assert clouds.shape == (2, 1, side, other)
    assert clouds.min() == 0
    assert clouds.max() <= 1
    assert side * other == 1 or clouds.max() == pytest.approx(1)


@given(new=st.integers(1, 40), old=st.integers(1, 40))
def test_resampling_weights_are_means(new: int, old: int) -> None:
    for weights in (areas(new, old), stretched(new, old), repeated(new, old)):
        assert weights.shape == (new, old)
        assert (weights >= -1e-6).all()
        np.testing.assert_allclose(weights.sum(axis=1), 1, rtol=1e-5)
    for same in (areas(old, old), stretched(old, old), repeated(old, old)):
        np.testing.assert_allclose(same, np.eye(old), atol=1e-6)
    np.testing.assert_allclose(areas(new, old).sum(axis=0), new / old, rtol=1e-4)  # no pixel counts more than another


@given(places=st.lists(st.floats(0, 9), min_size=1, max_size=20))
def test_linear_interpolation_is_exact_for_lines(places: list[float]) -> None:
    np.testing.assert_allclose(linear(np.array(places), 10) @ np.arange(10), places, atol=1e-5)


@pytest.mark.parametrize("kind", ["gaussian_noise", "motion_blur", "frost", "elastic_transform", "jpeg_compression"])
def test_memory_is_bounded_for_many_images(kind: str) -> None:
    images = np.zeros((2000, 32, 32, 3), dtype=np.uint8)
    tracemalloc.start()
    try:
        corrupted(images, kind, 1)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < images.nbytes + 60e6


def test_invalid_arguments_are_rejected() -> None:
    images = smooth(2, 8, 8)
    with pytest.raises(InputError, match="unknown corruption 'gausian_noise'; did you mean 'gaussian_noise'"):
        corrupted(images, "gausian_noise", 1)
    for severity in (0, 6, -1):
        with pytest.raises(InputError, match=f"must be from 1 to 5, got {severity}"):
            corrupted(images, "fog", severity)
    with pytest.raises(InputError, match="seed must be from 0 to 4294967295, got -1"):
        corrupted(images, "fog", 1, seed=-1)
    for wrong in (images / 255, images[0], images[:, :0]):
        with pytest.raises(InputError, match=r"images must be uint8 of shape \(N, height, width\) or .*, got"):
            corrupted(wrong, "fog", 1)


def test_the_documentation_lists_all_corruptions() -> None:
    page = (Path(__file__).parents[2] / "docs" / "how-to" / "use-data-sets.md").read_text()
    expected = dict(re.findall(r"^\| `(\w+)` \| (\w+) \|", page, re.MULTILINE))
    assert expected == {kind.name: family for family, kinds in FAMILIES.items() for kind in kinds}
