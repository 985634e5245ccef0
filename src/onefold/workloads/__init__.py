"""Bundled workloads, each also an example of how to write one.

Their names, as in `onefold tune digits`, are entry points in pyproject.toml, so torch is imported on first use only.
"""
