"""Devices, one file each, all behind the contract in `base`."""
