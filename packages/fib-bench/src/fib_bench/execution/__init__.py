"""Execution of plans by judge processes, one or more for each device.

`scheduler` has a thread for each judge, of this machine or, by `ray_scheduler`, of a cluster. `judge_process` has both
ends of the pipe to a judge.
"""
