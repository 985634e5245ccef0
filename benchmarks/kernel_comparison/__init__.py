"""Compare the kernel tuning of Onefold with MetaSchedule, and the tuned models with torch and onnxruntime.

networks      the networks, and the folders of a run: models, homes, libraries
tuning        Onefold's runs: cold start, without the filter, with history, several models together
metaschedule  MetaSchedule's runs, with our builder and runner and with its own
curves        the latency after each round, timed again through the call that serves
runtimes      latencies of torch, onnxruntime and TVM, timed in turns
interruption  a command that is killed and run again
figures       rows of figures from the runs and curves
bars          the claims
"""
