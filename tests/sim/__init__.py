"""Whole scenarios in virtual time, each from a seed."""
