"""Recordings and what is made of them."""
