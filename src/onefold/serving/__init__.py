"""Model + device -> serving points: export, tune, and serve as a scenario asks."""
