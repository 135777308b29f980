"""Why a model is cut as it is: through both clients, and the page exactly as it is printed."""

import asyncio
import io
import json
import os
import sys
from dataclasses import asdict, replace
from typing import Any

import pytest
from gpumuxd_client import BoundDetail, GroupDetail, SizedTensor, SliceDetail, errors
from gpumuxd_client.detail import decode_explanation
from rich.console import Console

from gpumuxd.ctl.explain_page import show_explanation
from gpumuxd.ctl.main import main
from gpumuxd.node.api import ExplanationView, SliceView
from gpumuxd.rpc.explanation_codec import encode_explanation
from tests.clients.conftest import AnyClient
from tests.rpc.details import FIXED_WHY, SEGMENTS_WHY
from tests.rpc.fake_node import ADMIN, CAMERA, FakeNode
from tests.rpc.front import CAMERA_TOKEN, Front

SAME = [
    "name",
    "version",
    "device",
    "mode",
    "reason",
    "group_count",
    "group_ns",
    "run_ns",
    "slice_count",
    "window",
    "slice_ns",
    "is_floor_over_bound",
    "exec_ns",
    "preempt_ns",
    "preempt_expected_ns",
    "is_guess",
    "is_cost_doubtful",
]


async def test_every_field_comes_through(client: AnyClient, node: FakeNode) -> None:
    told = await client("explain", "segments", version=2, sizes={"batch": 9})
    assert node.explained == [(ADMIN, "segments", "2", {"batch": 9})]
    for name in SAME:
        assert getattr(told, name) == getattr(SEGMENTS_WHY, name), name
    assert told.sizes == {"batch": 16, "height": 256, "width": 256}
    assert told.inputs == (SizedTensor("image", "FP32", (16, 3, 256, 256)),)
    assert told.priority_class == "STANDARD"
    assert told.bound == BoundDetail(8_000_000, "laxity", "voice")
    assert told.slices[1:] == (SliceDetail(2, 3, 11_200_000), SliceDetail(3, 5, 1_800_000))
    assert told.floor == GroupDetail(2, 11_200_000, 96, 99)


async def test_what_is_not_there_is_none(client: AnyClient) -> None:
    told = await client("explain", "fixed")
    assert (told.bound, told.floor) == (BoundDetail(None, "least_delay", ""), None)
    assert (told.sizes, told.slices, told.group_ns, told.is_guess) == ({}, (), (), True)


@pytest.mark.parametrize(
    ("model", "sizes", "error"),
    [
        ("nobody", None, errors.UnknownModel),
        ("segments", {"batch": -1}, ValueError),
        ("segments", {"batch": 2**63}, ValueError),
        ("segments", {"batch": 1.5}, TypeError),
        ("segments", {f"d{i}": 1 for i in range(65)}, errors.InvalidRequest),
    ],
)
async def test_what_makes_no_sense_is_refused(
    client: AnyClient, model: str, sizes: Any, error: type[Exception]
) -> None:
    with pytest.raises(error):
        await client("explain", model, sizes=sizes)


def printed(view: ExplanationView, width: int) -> str:
    told = decode_explanation(encode_explanation(view).SerializeToString())
    stream = io.StringIO()
    show_explanation(Console(file=stream, width=width, highlight=False), asdict(told))
    return "\n".join(line.rstrip() for line in stream.getvalue().splitlines())


SEGMENTS_PAGE = """\
segments version 2  at batch 16, height 256, width 256
  device      cpu:0
  input       image  FP32[16, 3, 256, 256]
  class       STANDARD
  mode        bounded: at most 8.000 ms may be in flight: laxity of voice
  bound       8.00 ms (what the SLO of voice leaves)

  run alone    20.00 ms in 5 groups, as learnt so far
  slices       3, cut to 7.50 ms; 2 in flight
  sync points  add 300 us to a run (1.5%), doubtful: the machine was busy at start
  delay        up to 11.30 ms for an arrival, 6.10 ms on average
  floor        11.20 ms, the longest group: number 2 (nodes 96 .. 98)
  One group takes 11.20 ms, more than the bound of 8.00 ms: whoever comes when it
  begins waits that long.

  slice  groups  predicted   ends at  each group
      0  0 .. 1    7.00 ms   7.00 ms  3.00 ms + 4.00 ms
      1  2        11.20 ms  18.20 ms  11.20 ms
      2  3 .. 4    1.80 ms  20.00 ms  1.00 ms + 800 us"""

FIXED_PAGE = """\
fixed version 3
  device      cpu:1
  input       x  INT64[]
  class       BEST_EFFORT
  mode        least_delay: no model that could be ordered ahead of it has an
              slo_ms
  bound       none is promised

  run alone   not known: no run of 7 groups was measured yet"""


@pytest.mark.parametrize(("view", "page"), [(SEGMENTS_WHY, SEGMENTS_PAGE), (FIXED_WHY, FIXED_PAGE)])
def test_the_page(view: ExplanationView, page: str) -> None:
    assert printed(view, 82) == page


def test_a_guess_is_called_one() -> None:
    firm = printed(replace(SEGMENTS_WHY, is_cost_doubtful=False), 82)
    assert "doubtful" not in firm
    assert "The times are a guess" in printed(replace(SEGMENTS_WHY, is_guess=True), 82)
    assert "guess" not in SEGMENTS_PAGE


def test_a_long_page_is_cut_and_says_so() -> None:
    many = replace(
        SEGMENTS_WHY,
        group_count=2_000,
        group_ns=(1_000,) * 1_000,
        slice_count=100,
        slices=tuple(SliceView(20 * i, 20 * i + 20, 20_000) for i in range(50)),
    )
    page = printed(many, 200)
    assert "and 60 more slices" in page
    assert "with --json" not in page, "not all were told"
    assert page.count(" + ...") == 40
    told = replace(many, slice_count=50)
    assert "and 10 more slices (all with --json)" in printed(told, 200)


@pytest.fixture(autouse=True)
def plain_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("GPUMUXD_TARGET", "GPUMUXD_TOKEN"):
        monkeypatch.delenv(name, raising=False)


async def run(target: str, *arguments: str) -> int:
    return await asyncio.to_thread(main, ["--target", target, *arguments])


async def test_the_command_asks_for_the_sizes_that_were_typed(
    front: Front, node: FakeNode, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ("explain", "segments", "--version", "2", "--size", "batch=9", "--json")
    assert await run(front.target, *arguments, "--size", "width=64") == 0
    told = json.loads(capsys.readouterr().out)
    assert node.explained[0][1:] == ("segments", "2", {"batch": 9, "width": 64})
    assert told["slices"][0] == {"first_group": 0, "end_group": 2, "predicted_ns": 7_000_000}
    assert (told["sizes"]["batch"], told["floor"]["end_node"]) == (16, 99)
    token = ("--token", CAMERA_TOKEN)
    assert await run(front.shared, *token, "explain", "fixed") == 0
    assert node.explained[-1] == (CAMERA, "fixed", "", {})
    assert "least_delay: no model" in capsys.readouterr().out


@pytest.mark.parametrize("options", [(), ("--json",)])
async def test_whoever_reads_may_leave_before_the_end(
    front: Front, monkeypatch: pytest.MonkeyPatch, options: tuple[str, ...]
) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "w") as pipe:
        monkeypatch.setattr(sys, "stdout", pipe)
        assert await run(front.target, "explain", "segments", *options) == 0


@pytest.mark.parametrize(
    ("arguments", "code", "told"),
    [
        (("nobody",), 1, "NOT_FOUND: no model 'nobody'"),
        (("segments", "--size", "batch"), 2, "--size batch: expected NAME=N, such as batch=4"),
        (("segments", "--size", "batch=-1"), 2, "expected NAME=N"),
        (("segments", "--size", "=4"), 2, "expected NAME=N"),
        (("segments", "--size", f"batch={10**18}"), 2, "expected NAME=N"),
        (("segments", "--size", "a=1", "--size", "a=2"), 2, "--size a: given more than once"),
    ],
)
async def test_the_command_refuses_clearly(
    front: Front,
    capsys: pytest.CaptureFixture[str],
    arguments: tuple[str, ...],
    code: int,
    told: str,
) -> None:
    assert await run(front.target, "explain", *arguments) == code
    assert told in capsys.readouterr().err
