"""Run a model in its runtime as a PyTorch module, so that what is scored is what will be served."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch

from onefold.serving import deploy
from onefold.vocabulary.outputs import with_tensors
from onefold.vocabulary.serving import ONNXRUNTIME, ServingPoint

BATCH_SIZE = 128


class OnnxModule(torch.nn.Module):
    """A module whose forward pass runs in a runtime, with as many threads as PyTorch uses.

    Args:
        path: The ONNX file, with its form for the runtime beside it.
        template: Outputs of the network that was exported: those of the module have the same structure.
        runtime: The runtime.
    """

    def __init__(self, path: Path, template: Any, runtime: str = ONNXRUNTIME) -> None:
        super().__init__()
        self._template = template
        self._served = deploy.ServedModel(path, ServingPoint(BATCH_SIZE, torch.get_num_threads(), runtime=runtime))

    def forward(self, *inputs: torch.Tensor) -> Any:
        outputs = self._served(*(part.cpu().numpy() for part in inputs))
        tensors = [torch.from_numpy(np.asarray(each)) for each in (outputs if isinstance(outputs, list) else [outputs])]
        return with_tensors(self._template, tensors)
