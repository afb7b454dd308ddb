"""Durable queue of submissions: one table with leases.

- `submitting` accepts submissions, `reading` looks them up.
- `leasing` hands each to one worker at a time, fairly between users.
- `recording` appends traces while a lease is held, `reconciliation` compares the database with the trace files.
"""
