"""Serving: export a model, tune its serving points on a device, and choose settings for a scenario."""
