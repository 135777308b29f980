"""Simulator, virtual device, workloads and invariant checkers. Imported by tests/ and bench/."""
