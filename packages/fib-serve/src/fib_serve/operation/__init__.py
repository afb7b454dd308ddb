"""Operation of a service: the supervisor of its processes, backup, retention, and the doctor."""
