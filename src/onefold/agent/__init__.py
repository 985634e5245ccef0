"""What runs on a board: measure models there, and serve these measurements to Onefold over the network.

This package imports the standard library, numpy and onnxruntime only, and runs on Python 3.9: `onefold agent pack`
writes it into one file. Sessions on this machine measure with the same code.
"""
