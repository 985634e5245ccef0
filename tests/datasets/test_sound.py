"""Speech: its scale, and that no voice is in two parts."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from onefold import datasets
from onefold.vocabulary.errors import DatasetError


def write(folder: Path) -> None:
    """Each clip is filled with the number of its speaker."""
    speakers = np.concatenate([np.repeat(np.arange(20), 5), np.full(10, -1)]).astype(np.int16)
    np.savez(
        folder / "speech_commands.npz",
        audio=np.repeat(1000 + speakers[:, None], 8000, axis=1).astype(np.int16),
        labels=(np.arange(110) % 12).astype(np.uint8),
        speakers=speakers,
        is_test=speakers >= 15,
    )


def test_nobody_is_heard_in_two_parts(chosen: Path, cache: Path) -> None:
    write(chosen)
    data = datasets.speech_commands()
    voices = [{*sound[:, 0, 0].tolist()} for sound, _ in (data.train, data.validation, data.test)]
    silence = float(min(voices[0]))  # the only sound that may be everywhere, because nobody is speaking
    assert not voices[0] & voices[1] - {silence}
    assert not voices[0] & voices[2]
    assert len(data.train[1]) + len(data.validation[1]) == 85
    assert 17 <= len(data.validation[1]) <= 21


def test_sound_has_a_channel(chosen: Path, cache: Path) -> None:
    write(chosen)
    sound, labels = datasets.speech_commands().test
    assert sound.shape == (25, 1, 8000)
    assert (sound.dtype, labels.dtype) == (np.float32, np.int64)


def test_a_missing_set_says_where_it_comes_from(chosen: Path, cache: Path) -> None:
    with pytest.raises(DatasetError, match=r"speech_commands.npz is missing: .*audio: int16 \(N, 8000\).*github.com"):
        datasets.speech_commands()


def test_the_real_set(needs: Callable[[str], Path]) -> None:
    needs("speech_commands.npz")
    data = datasets.speech_commands()
    assert [len(labels) for _, labels in (data.train, data.validation, data.test)] == [1_116, 306, 618]
    assert all(set(labels) == set(range(12)) for _, labels in (data.train, data.validation, data.test))
    assert data.train[0].std() == pytest.approx(1, abs=1e-3)
