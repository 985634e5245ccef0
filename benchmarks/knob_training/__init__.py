"""Measure what tuned knobs do to the training of single jobs.

training   train a configuration in a new process, alone or beside a process that keeps a core busy
contention the process that keeps a core busy
sections   what is measured: variants, similar jobs, pairs of profiles, contention in the middle
bars       the claims
"""
