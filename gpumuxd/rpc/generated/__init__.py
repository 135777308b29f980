"""Made by protos/generate.py from protos/: change those, not these."""
