"""Ready workloads, each a short example of how to write one.

Their names, as in `onefold tune digits`, are entry points in pyproject.toml. No module imports torch before it is used.
"""
