"""Channel between judge and workers: messages, remote calls, shared memory."""
