"""Migration of programs from `flashinfer_bench` to the FIB packages."""
