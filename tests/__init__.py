"""Tests, sorted by what they need (CONTRIBUTING.md)."""
