"""Digital corruptions: contrast, saturation, elastic deformation, pixelation, JPEG."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy import fft, ndimage

from onefold.baselines.corruptions.corruption import Corruption, Planes, luminance
from onefold.baselines.corruptions.resampling import areas, read_at, repeated, resampled, stretched

BLOCK = 8  # side of a JPEG block in pixels
# JPEG quantization tables at quality 50 (annex K of the standard).
LUMINANCE = np.array(
    [[16, 11, 10, 16, 24, 40, 51, 61],
     [12, 12, 14, 19, 26, 58, 60, 55],
     [14, 13, 16, 24, 40, 57, 69, 56],
     [14, 17, 22, 29, 51, 87, 80, 62],
     [18, 22, 37, 56, 68, 109, 103, 77],
     [24, 35, 55, 64, 81, 104, 113, 92],
     [49, 64, 78, 87, 103, 121, 120, 101],
     [72, 92, 95, 98, 112, 100, 103, 99]]
)  # fmt: skip
CHROMINANCE = np.full((BLOCK, BLOCK), 99)
CHROMINANCE[:4, :4] = [[17, 18, 24, 47], [18, 21, 26, 66], [24, 26, 56, 99], [47, 66, 99, 99]]


def _contrast(planes: Planes, kept: float, _: np.random.RandomState) -> Planes:
    mean = planes.mean(axis=(2, 3), keepdims=True)
    flatter: Planes = (planes - mean) * kept + mean
    return flatter


def _saturate(planes: Planes, level: tuple[float, float], _: np.random.RandomState) -> Planes:
    if planes.shape[1] != 3:
        return planes  # grayscale has no saturation
    factor, more = level
    value = planes.max(axis=1, keepdims=True)
    missing = value - planes  # to white of the same value
    most = missing.max(axis=1, keepdims=True)
    saturation = np.divide(most, value, out=np.zeros_like(value), where=value > 0)
    wanted = np.clip(saturation * factor + more, 0, 1)
    # A gray pixel has no hue and stays gray.
    growth = np.divide(wanted, saturation, out=np.ones_like(value), where=saturation > 0)
    changed: Planes = value - missing * growth
    return changed


def _elastic(planes: Planes, level: tuple[float, float, float], rng: np.random.RandomState) -> Planes:
    count, _, height, width = planes.shape
    side = min(height, width)
    strength, sigma, shift = (side * share for share in level)
    # A random affine map, defined by the displacement of three corners of a central square …
    corners = np.array([[1, 1, 1], [1, -1, 1], [-1, -1, 1]]) * [side / 3, side / 3, 1]
    moved = corners[:, :2] + rng.uniform(-shift, shift, (count, 3, 2))
    affine = np.linalg.inv(corners) @ moved
    # … after a smooth random displacement of each pixel.
    pushes = rng.uniform(-1, 1, (2, count, height, width))
    pushes = strength * ndimage.gaussian_filter(pushes, (0, 0, sigma, sigma), mode="reflect", truncate=3)
    rows = np.arange(height)[:, None] - (height - 1) / 2 + pushes[0]
    columns = np.arange(width) - (width - 1) / 2 + pushes[1]

    def positions(axis: int, size: int) -> NDArray[np.float64]:
        by_row, by_column, by = (affine[:, term, axis, None, None] for term in range(3))
        position: NDArray[np.float64] = by_row * rows + by_column * columns + by + (size - 1) / 2
        return position

    return read_at(planes, positions(0, height), positions(1, width))


def _pixelate(planes: Planes, share: float, _: np.random.RandomState) -> Planes:
    height, width = planes.shape[2:]
    small = [max(1, int(size * share)) for size in (height, width)]
    coarse = resampled(planes, areas(small[0], height), areas(small[1], width))
    return resampled(coarse, repeated(height, small[0]), repeated(width, small[1]))


def _jpeg(planes: Planes, quality: int, _: np.random.RandomState) -> Planes:
    height, width = planes.shape[2:]
    is_rgb = planes.shape[1] == 3
    unit = 2 * BLOCK if is_rgb else BLOCK
    padded = np.pad(255 * planes, ((0, 0), (0, 0), (0, -height % unit), (0, -width % unit)), mode="edge")
    if not is_rgb:
        return (_coded(padded - 128, LUMINANCE, quality) + 128)[:, :, :height, :width] / 255
    brightness = luminance(padded)
    shades = np.concatenate([(padded[:, [2]] - brightness) / 1.772, (padded[:, [0]] - brightness) / 1.402], axis=1)
    brightness = _coded(brightness - 128, LUMINANCE, quality) + 128
    high, wide = padded.shape[2:]
    halved = _coded(resampled(shades, areas(high // 2, high), areas(wide // 2, wide)), CHROMINANCE, quality)
    shades = resampled(halved, stretched(high, high // 2), stretched(wide, wide // 2))
    red, blue = brightness + 1.402 * shades[:, [1]], brightness + 1.772 * shades[:, [0]]
    green = (brightness - 0.299 * red - 0.114 * blue) / 0.587
    return np.concatenate([red, green, blue], axis=1)[:, :, :height, :width] / 255


def _coded(values: Planes, table: NDArray[np.int64], quality: int) -> Planes:
    """Encode and decode zero-centered values whose sides are multiples of a block."""
    scale = 5000 // quality if quality < 50 else 200 - 2 * quality
    steps = np.clip((table * scale + 50) // 100, 1, 255).astype(np.float32)[:, None, :]
    count, channels, height, width = values.shape
    blocks = values.reshape(count, channels, height // BLOCK, BLOCK, width // BLOCK, BLOCK)
    frequencies = fft.dctn(blocks, axes=(3, 5), norm="ortho")
    kept: Planes = fft.idctn(np.rint(frequencies / steps) * steps, axes=(3, 5), norm="ortho")
    return kept.reshape(values.shape)


KINDS = (
    Corruption("contrast", "lower contrast", (0.75, 0.5, 0.4, 0.3, 0.15), _contrast),
    Corruption("saturate", "lower saturation at severity 1 and 2, higher above; grayscale is unchanged",
               ((0.3, 0), (0.1, 0), (1.5, 0), (2, 0.1), (2.5, 0.2)), _saturate),
    Corruption("elastic_transform", "elastic deformation: affine at severity 1, increasingly local above",
               ((0, 0, 0.08), (0.05, 0.2, 0.07), (0.08, 0.06, 0.06), (0.1, 0.04, 0.05), (0.1, 0.03, 0.03)), _elastic),
    Corruption("pixelate", "lower resolution", (0.95, 0.9, 0.85, 0.75, 0.65), _pixelate),
    Corruption("jpeg_compression", "JPEG artifacts", (80, 65, 58, 50, 40), _jpeg),
)  # fmt: skip
