"""Deft on trial: is the choice of sync points better than any fixed one, here and on other shapes?

    profiles   what was measured of the models and of the device, as data
    record     measures that anew
    virtual    (1) all ordered pairs, in virtual time
    live       (2) six pairs on the CPU device
    served     (3) through gRPC, two daemons

`python -m bench.deft --help`.
"""
