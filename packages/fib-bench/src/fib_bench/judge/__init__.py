"""The judge: evaluates solutions on one device and decides.

`evaluate` is its entry. `prepare` makes a workload's inputs and expected outputs (`prepared`); `solution_run` has a
solution built, checked, sealed and timed. `function_worker` is a function and its worker, `timed_function` its calls on
one workload. `interleaving` times a solution in turns with the reference; `timer` takes both latencies of a function,
from `passes` with the judge's clock around every call; `verification` compares timed calls with fresh answers;
`graph_safety` says what CUDA graphs may do; `record` makes the evaluation. `device` is what they share.

A function that fails raises `Rejected` with the verdict, a capture that fails `NotCapturable`, a worker that ends
`WorkerLost`, wherever it is asked. `solution_run` makes results of those of a solution, `interleaving` leaves a
baseline out, and `evaluate` refuses a workload whose reference fails.
"""
