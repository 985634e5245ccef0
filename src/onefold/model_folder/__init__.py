"""The folder of a model: its files with their digests, replaced as a whole, and how far its content is trusted.

FOLDER/manifest.json         the size and digest of every file that Onefold reads back
FOLDER/model.json            the model card: study, workload, trial, configuration and metrics
FOLDER/weights.safetensors   the weights of the best epoch
FOLDER/reference.npz         a few samples of the validation data, which a retraining must not forget
FOLDER/model.onnx, …         what serving, compression and kernels add
FOLDER/previous/             the model that a retraining replaced: a folder of the same kind

A folder is written by `new_generation`, which replaces it in one rename, and read through `open_folder`, which checks
the digests. Code that a folder contains or names runs only if the caller trusts the folder, or if this home wrote it.
"""

from onefold.model_folder.card import (
    CARD,
    LEGACY_WEIGHTS,
    PREVIOUS,
    PROFILE,
    REFERENCE,
    WEIGHTS,
    find_weights,
    has_weights,
    read_card,
    read_trained_card,
)
from onefold.model_folder.generation import new_generation, sync_folder
from onefold.model_folder.manifest import MANIFEST, Manifest
from onefold.model_folder.opened import ModelFolder, open_folder
from onefold.model_folder.target import check_target, saving
from onefold.model_folder.trust import home_path

__all__ = [
    "CARD",
    "LEGACY_WEIGHTS",
    "MANIFEST",
    "PREVIOUS",
    "PROFILE",
    "REFERENCE",
    "WEIGHTS",
    "Manifest",
    "ModelFolder",
    "check_target",
    "find_weights",
    "has_weights",
    "home_path",
    "new_generation",
    "open_folder",
    "read_card",
    "read_trained_card",
    "saving",
    "sync_folder",
]
