"""A deployed model and new data -> a better model, within a memory limit and a time window."""
