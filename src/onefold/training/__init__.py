"""Workload + configuration + grant -> a trained model, epoch by epoch.

The modules import torch; this page does not, so that a study can plan before torch is there.
"""
