"""What is done with a data set of workloads: looked at, thinned out, sampled."""
