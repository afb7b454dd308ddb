"""Execution of plans by judge processes, one or more for each device.

In the driver: `executors` (which executor), `scheduler` (a thread for each judge), `judge_process.JudgeProcess` (its
handle), `ray_cluster`. In the judge process: `judge_process.main`, and `execution`, which goes through the work items.
"""
