"""Run an ONNX file as a PyTorch module, so that what is scored is what will be served."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch

from onefold.serving import deploy
from onefold.vocabulary.serving import ServingPoint

BATCH_SIZE = 128


class OnnxModule(torch.nn.Module):
    """A module whose forward pass runs in ONNX Runtime, with as many threads as PyTorch uses."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self._served = deploy.ServedModel(path, ServingPoint(BATCH_SIZE, torch.get_num_threads()))

    def forward(self, *inputs: torch.Tensor) -> Any:
        outputs = self._served(*(part.cpu().numpy() for part in inputs))
        if isinstance(outputs, list):
            return tuple(torch.from_numpy(np.asarray(output)) for output in outputs)
        return torch.from_numpy(outputs)
