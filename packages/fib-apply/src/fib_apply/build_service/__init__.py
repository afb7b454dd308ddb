"""Build service: compiles, probes and loads solutions beside the calls of an engine, never inside one."""
