"""What Onefold is compared with, and the data for such comparisons. Nothing in the features imports this package.

retraining           strategies of the literature; importing the module registers them by name
kernel_strategies    searches for kernel schedules; importing the package registers them by name
tuning_strategies    strategies of tuning for a device; `tuning_comparison` runs them at equal budget
corruptions          image corruptions of CIFAR-10-C: noise, blur, weather, digital
shifted_datasets     datasets as a deployed model meets them: corrupted, from another domain, with new classes
"""
