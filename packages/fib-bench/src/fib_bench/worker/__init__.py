"""Untrusted workers: the fork server, the code that runs inside a worker, and the judge's handles on both.

`fork_server`, `confinement`, `session` and `calls` run in other processes, `server_client` and `client` in the judge.
"""
