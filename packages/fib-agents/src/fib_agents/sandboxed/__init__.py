"""Programs that run a solution inside the sandbox of the benchmark: profilers, sanitizers, disassemblers.

`run` is the caller's side, `confine` supervises and confines one command, and `call` calls a solution once there.

Profilers and sanitizers speak to the process that they look into over sockets of the machine. So these are open to them
(`SandboxPolicy.local_sockets`), in a network namespace of their own where the system allows that. Everything else is
closed as for workers of the benchmark: the data set, other files, other
processes, other solutions' caches. Their output is untrusted, because the solution runs as the same user.
"""

from __future__ import annotations
