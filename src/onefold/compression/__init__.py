"""From a trained network to variants of it: pruned, quantised, encoded.

masks       zeros among the weights, the smallest first, over the whole network
channels    whole channels taken out, so that the network is really smaller
quantising  integers instead of floating-point numbers, as ONNX Runtime computes them
reordering  the same graph in an order that a runtime makes more of
awareness   training that feels what integers will do to it
encoding    a model's file packed, and unpacked bit by bit as it was
slimming    a model's file without what only people read
sensitivity how much each layer minds being pruned
"""

from onefold.compression.channel_pruning import ChannelPruner
from onefold.compression.encoding import ENCODINGS, pack, unpack
from onefold.compression.fake_quantization import fake_quantization
from onefold.compression.magnitude_pruning import PruningMasks, gradual
from onefold.compression.onnx_metadata import strip_metadata
from onefold.compression.quantization import quantize_onnx, weight_sparsity
from onefold.compression.sensitivity import sensitivity

__all__ = [
    "ENCODINGS",
    "ChannelPruner",
    "PruningMasks",
    "fake_quantization",
    "gradual",
    "pack",
    "quantize_onnx",
    "sensitivity",
    "strip_metadata",
    "unpack",
    "weight_sparsity",
]
