"""Runtimes: what converts a model into the format of a runtime, and loads it there."""
