"""Untrusted workers: the fork server, the code that runs inside a worker, and the judge's handles on both.

In workers: `session`, `passes`, `autotuning`, `tamper_check`. In the judge: `client`, `outside_checks`.
"""
