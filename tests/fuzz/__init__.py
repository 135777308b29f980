"""Fuzzing: mutated files for every reader, and for a real loader and device child (`make fuzz`)."""
