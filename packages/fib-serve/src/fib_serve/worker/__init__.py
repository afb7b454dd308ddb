"""Device workers: processes that evaluate leased submissions through fib-bench. Only these load torch."""
