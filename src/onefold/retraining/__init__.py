"""Retraining of a deployed model on new data, within a peak-memory limit and a time window.

Reading order: `api` opens model, data and limits; `controller` runs the retraining; `stages`, `memory_trace`,
`memory_model`, `stage_times` and `network_profile` predict the cost of a plan; `feasible_plans`, `rules` and
`gain_search` choose plans; `plan_runner`, `training_step` and `optimizers` train.
"""
