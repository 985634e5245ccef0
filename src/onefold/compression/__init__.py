"""Compression of trained networks: pruning, quantization, entropy coding, and the selection of a variant.

compressor            the Compressor protocol, which every method implements
registry              the methods by name: what a recipe may ask for
magnitude_pruning     unstructured pruning (LAMP)
channel_pruning       structured pruning
quantization          static and dynamic int8, fp16; fake_quantization for quantization-aware training
weight_only_quantization, mixed_precision   4 or 8 bits for weights alone; a precision for each layer
encoding              DEFLATE and Zstandard
variant_builder       builds variants of a trained network; onnx_builder of an ONNX file
measurement           measures variants on a device; selection selects one
after_study           compresses the best trials of a study; trial_variants builds and measures variants of trials
api                   `onefold.compress`
"""

from onefold.compression.encoding import pack, unpack

__all__ = ["pack", "unpack"]
