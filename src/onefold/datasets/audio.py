"""Audio: (N, 1, samples) float32, scaled to unit standard deviation over the training split."""

from __future__ import annotations

import numpy as np

from onefold.datasets.data_files import DataFile, read_arrays
from onefold.datasets.split import grouped_split
from onefold.vocabulary.workload import Data

SPEECH_COMMANDS = DataFile(
    "speech_commands.npz",
    {"audio": "int16 (N, 8000)", "labels": "uint8 (N)", "speakers": "int16 (N)", "is_test": "bool (N)"},
    "MLTK_keyworkSpotting/dataset of github.com/thegtagamer/PICO-tinyML-benchmark, at 8 kHz",
)
NO_SPEAKER = -1


def speech_commands() -> Data:
    """Return Speech Commands: one second of speech at 8 kHz, 12 classes (10 words, unknown word, silence).

    No speaker is in two splits, since a network that recognizes the voice would score too high. A fifth of the
    training split becomes the validation split.
    """
    arrays = read_arrays(SPEECH_COMMANDS)
    audio, labels, is_test = arrays["audio"], arrays["labels"].astype(np.int64), arrays["is_test"]
    # Clips of silence have no speaker, so each is a group of its own.
    speakers = arrays["speakers"].astype(np.int64)
    is_silence = speakers == NO_SPEAKER
    speakers[is_silence] = speakers.max() + 1 + np.arange(np.count_nonzero(is_silence))
    development = np.flatnonzero(~is_test)
    train, validation = (development[part] for part in grouped_split(speakers[development], len(development) // 5))
    deviation = np.float32(audio[train].std())
    splits = (
        (audio[indices, None].astype(np.float32) / deviation, labels[indices])
        for indices in (train, validation, np.flatnonzero(is_test))
    )
    return Data(*splits)
