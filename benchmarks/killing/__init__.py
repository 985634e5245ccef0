"""Disturb Onefold's processes with SIGKILL and SIGSTOP, and check what is left.

injection   kill a process at one of its system calls that change files
command     run a function in a process of its own, whose descendants can be found again
checks      what must hold after a disturbance: decisions and results, model folders, processes
scenarios   what is run, and which of its processes are disturbed
progress    the outcomes so far, in files, so that a run can be interrupted, continued and merged
"""
