"""Speech Commands: scale and speaker-disjoint splits."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from onefold import datasets
from onefold.vocabulary.errors import DatasetError


def write(folder: Path) -> None:
    """Write a file in which each clip is filled with the number of its speaker."""
    speakers = np.concatenate([np.repeat(np.arange(20), 5), np.full(10, -1)]).astype(np.int16)
    np.savez(
        folder / "speech_commands.npz",
        audio=np.repeat(1000 + speakers[:, None], 8000, axis=1).astype(np.int16),
        labels=(np.arange(110) % 12).astype(np.uint8),
        speakers=speakers,
        is_test=speakers >= 15,
    )


def test_splits_share_no_speaker(data_folder: Path, cache: Path) -> None:
    write(data_folder)
    data = datasets.speech_commands()
    voices = [{*sound[:, 0, 0].tolist()} for sound, _ in (data.train, data.validation, data.test)]
    silence = float(min(voices[0]))  # has no speaker, so it may be in several splits
    assert not voices[0] & voices[1] - {silence}
    assert not voices[0] & voices[2]
    assert len(data.train[1]) + len(data.validation[1]) == 85
    assert 17 <= len(data.validation[1]) <= 21


def test_audio_has_a_channel_axis(data_folder: Path, cache: Path) -> None:
    write(data_folder)
    sound, labels = datasets.speech_commands().test
    assert sound.shape == (25, 1, 8000)
    assert (sound.dtype, labels.dtype) == (np.float32, np.int64)


def test_missing_file_error_names_the_origin(data_folder: Path, cache: Path) -> None:
    with pytest.raises(DatasetError, match=r"speech_commands.npz is missing: .*audio: int16 \(N, 8000\).*github.com"):
        datasets.speech_commands()


def test_real_file(real_file: Callable[[str], Path]) -> None:
    real_file("speech_commands.npz")
    data = datasets.speech_commands()
    assert [len(labels) for _, labels in (data.train, data.validation, data.test)] == [1_116, 306, 618]
    assert all(set(labels) == set(range(12)) for _, labels in (data.train, data.validation, data.test))
    assert data.train[0].std() == pytest.approx(1, abs=1e-3)
