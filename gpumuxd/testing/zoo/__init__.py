"""Real architectures to export, read and serve: what tests and `bench/zoo.py` try the reader on."""
