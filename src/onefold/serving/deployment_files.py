"""The names of the files in a deployment folder."""

from __future__ import annotations

MODEL, DEPLOYMENT, CARD = "model.onnx", "deployment.json", "README.md"
