"""Recorded studies with three goals (accuracy, latency, size): every configuration of a grid, trained for real."""
