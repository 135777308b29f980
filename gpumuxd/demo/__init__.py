"""Two real models on one device: what the daemon is for, in two minutes."""
