"""Fuzzing of the store: mutations of a healthy data set, targets that read it, findings with small reproductions."""
