"""The example of the client package, as it is."""

import asyncio
import runpy
from pathlib import Path

import pytest

from tests.rpc.front import Front

EXAMPLE = Path(__file__).resolve().parents[2] / "clients/python/examples/infer.py"


@pytest.mark.parametrize(("model", "code"), [("unloaded", 0), ("nobody", 1)])
async def test_it_runs(
    front: Front, model: str, code: int, capsys: pytest.CaptureFixture[str]
) -> None:
    main = runpy.run_path(str(EXAMPLE))["main"]
    assert await asyncio.to_thread(main, front.target, model) == code
    captured = capsys.readouterr()
    if code == 0:
        assert "y float32 (1, 4)" in captured.out
    else:
        assert captured.err.startswith("UnknownModel: ")
