"""gpumuxd: one daemon that owns all GPUs of an edge node and shares them between tenants.

Nothing is imported here, so that `import gpumuxd.x` costs exactly what `x` costs: the parent
process must stay free of torch (ARCHITECTURE.md, "Processes").
"""

__version__ = "0.1.0"
