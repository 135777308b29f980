"""The scheduler as it is written, also where a translated one serves (`gpumuxd.compiled`).

What is restored are objects without a call of their constructors, which translated classes do not
allow. So a replay runs the sources, beside the translation if need be: for a recording of that, it
is the proof that both decide alike. It must not know what the modules do.

Invariant: whoever imports `gpumuxd.core` gets what he would get without this.
"""

import functools
import importlib
import os
import sys
from collections.abc import Mapping
from types import ModuleType

import gpumuxd
import gpumuxd.core.device_scheduler  # so that it is there to be looked at
from gpumuxd.compiled import INTERPRETED

CORE = "gpumuxd.core"
SCHEDULER = "gpumuxd.core.device_scheduler"


@functools.cache
def source_modules() -> Mapping[str, ModuleType]:
    """The modules of `gpumuxd.core` by their names, all of them from sources."""
    there = _modules()
    if (there[SCHEDULER].__file__ or "").endswith(".py"):
        return there
    before = os.environ.get(INTERPRETED)
    package = there[CORE]
    for name in there:
        del sys.modules[name]
    os.environ[INTERPRETED] = "1"
    try:
        importlib.import_module(SCHEDULER)
        return _modules()
    finally:
        if before is None:
            del os.environ[INTERPRETED]
        else:
            os.environ[INTERPRETED] = before
        for name in _modules():
            del sys.modules[name]
        sys.modules.update(there)
        gpumuxd.core = package


def _modules() -> dict[str, ModuleType]:
    return {
        name: module
        for name, module in sys.modules.items()
        if name == CORE or name.startswith(f"{CORE}.")
    }
