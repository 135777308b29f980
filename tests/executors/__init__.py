"""One contract for every executor, run against each."""
