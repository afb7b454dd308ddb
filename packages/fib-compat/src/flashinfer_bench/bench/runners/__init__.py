"""Nothing: see `flashinfer_bench.bench.runner`."""
