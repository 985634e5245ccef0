"""Train the configurations of a workload epoch by epoch, with the machine's knobs tuned meanwhile.

`Trainer` is the seam. Most modules import torch; this one does not, so that a study can be planned without it.
"""
