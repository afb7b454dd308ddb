"""The judge: evaluates solutions on one device and decides.

`evaluate` is its entry: it goes through a plan, and has each solution built, checked, sealed and timed. `prepare` makes
a workload's inputs and expected outputs (`prepared`). `functions` are a function and its worker, and its calls on one
workload. `timer` takes both latencies of a function, in turns with the reference, from `passes`; `record` makes the
evaluation. `device` is what they share.

A function that fails raises `Rejected` with the verdict, a capture that fails `NotCapturable`, a worker that ends
`WorkerLost`. Those of a solution become results; a baseline is left out, and a reference ends its workload.
"""
