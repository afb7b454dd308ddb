"""The judge: evaluates solutions on one device and decides.

`evaluate` holds what a device needs. `prepare` makes a workload's inputs and expected outputs; `solution_run` has a
solution built, checked, sealed and timed; `timed_function` calls one function in its worker; `baselines` times a
solution in turns with the reference; `timer` takes both latencies of a function, from `passes` with the judge's clock
around every call; `verification` compares timed calls with fresh answers; `record` makes the evaluation.
"""
