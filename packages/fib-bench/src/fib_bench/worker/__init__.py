"""Untrusted workers: the server that forks them, what runs inside, and the judge's handle on one.

`server` and `session` run in other processes; `pool` is the judge's side of both.
"""
