"""Real architectures through export, reader and program."""
