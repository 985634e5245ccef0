"""The names of the files in a deployment folder."""

from __future__ import annotations

from pathlib import Path

PROGRAM = "model.pt"  # instead of MODEL, for a network that cannot be exported to ONNX
MODEL, DEPLOYMENT, CARD = "model.onnx", "deployment.json", "README.md"
FORM_FILES = (  # of the model for other runtimes than ONNX Runtime, and their list
    "model.runtimes.json", "model.xml", "model.bin", "model.ncnn.param", "model.ncnn.bin", "model.tflite", "model.pte",
    "model.pt",
)  # fmt: skip


def model_in(folder: Path) -> Path:
    """Return the path of the model in a deployment folder: that of the ONNX file unless there is a program instead."""
    return folder / (PROGRAM if (folder / PROGRAM).is_file() and not (folder / MODEL).is_file() else MODEL)
