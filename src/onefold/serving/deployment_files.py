"""The names of the files in a deployment folder."""

from __future__ import annotations

MODEL, DEPLOYMENT, CARD = "model.onnx", "deployment.json", "README.md"
FORM_FILES = (  # of the model for other runtimes than ONNX Runtime, and their list
    "model.runtimes.json", "model.xml", "model.bin", "model.ncnn.param", "model.ncnn.bin", "model.tflite", "model.pte",
    "model.pt2",
)  # fmt: skip
