"""Execution of plans by judge processes, one or more for each device.

`local_scheduler` and `ray_scheduler` make the `scheduler`, which has a thread for each judge. `judge_process` has both
ends of the pipe to a judge, in whose process `plan_runner` goes through the work.
"""
