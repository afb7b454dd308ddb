"""Maintenance of a data set's workloads: survey, deduplication, sampling."""
