"""Benches: each prints a table and compares its figures with stated goals (bench/README.md)."""
