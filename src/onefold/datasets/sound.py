"""Sound: (N, 1, samples) float32, scaled to a deviation of 1 over the training part."""

from __future__ import annotations

import numpy as np

from onefold.datasets.folder import Source, read_arrays
from onefold.datasets.split import held_back_groups
from onefold.vocabulary.workload import Data

SPEECH_COMMANDS = Source(
    "speech_commands.npz",
    {"audio": "int16 (N, 8000)", "labels": "uint8 (N)", "speakers": "int16 (N)", "is_test": "bool (N)"},
    "MLTK_keyworkSpotting/dataset of github.com/thegtagamer/PICO-tinyML-benchmark, at 8 kHz",
)
NOBODY = -1


def speech_commands() -> Data:
    """One second of speech at 8 kHz: 10 words, an unknown word or silence, the 12 classes.

    Nobody is heard in two parts: a voice that the network knows would make it look better than it is. A fifth of the
    training part is there to validate.
    """
    arrays = read_arrays(SPEECH_COMMANDS)
    audio, labels, is_test = arrays["audio"], arrays["labels"].astype(np.int64), arrays["is_test"]
    # Silence has no speaker: each clip of it goes its own way.
    speakers = arrays["speakers"].astype(np.int64)
    silence = speakers == NOBODY
    speakers[silence] = speakers.max() + 1 + np.arange(np.count_nonzero(silence))
    known = np.flatnonzero(~is_test)
    train, validation = (known[part] for part in held_back_groups(speakers[known], len(known) // 5))
    deviation = np.float32(audio[train].std())
    parts = (
        (audio[part, None].astype(np.float32) / deviation, labels[part])
        for part in (train, validation, np.flatnonzero(is_test))
    )
    return Data(*parts)
