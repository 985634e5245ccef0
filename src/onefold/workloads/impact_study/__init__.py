"""The four models of an impact study, with the hyperparameters and defaults of its table 2, small and at full size.

The study: Liao, Li, Shang and Ma, An empirical study of the impact of hyperparameter tuning and model optimization on
the performance properties of deep neural networks.

images      a small CNN on MNIST and a residual network on CIFAR-10
texts       a CNN and an LSTM on IMDB
full_size   the same with the ranges of the study, for a GPU
workload    what they share: activations, losses and optimizers by name

The groups of their spaces are the study's three dimensions: `architecture`, `layers` and `training`, which the study
calls optimizer hyperparameters. Ranges of the small models are cut where training on a CPU would take too long; each
class says how.
"""
