"""Disturb Onefold's processes with SIGKILL and SIGSTOP, and check the results.

syscall_kills  kill a process at one of its system calls that change files
command        run a function in a separate process whose descendants can be found again
checks         what must hold after a disturbance: decisions and results, model folders, processes
scenario       a command that is disturbed, and its comparison with an undisturbed run
scenarios      the commands: studies, measurements, queues, retrainings, compressions, compilations
outcomes       the outcomes so far, in files, so that a run can be interrupted, continued and merged
"""
