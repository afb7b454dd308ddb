"""Storage of kept calls as workloads of a data set."""
