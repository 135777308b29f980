"""`gpumuxctl model`: the page exactly as it is printed, at 80 columns and on a pipe."""

import asyncio
import io
import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
from gpumuxd_client.detail import decode_model_detail
from rich.console import Console

from gpumuxd.ctl.main import main
from gpumuxd.ctl.model_page import show_model
from gpumuxd.ctl.tables import PIPE_COLUMNS
from gpumuxd.node.api import BoundOrigin, BoundView, ModelDetail
from gpumuxd.rpc.detail_codec import encode_detail
from tests.rpc.details import FIXED, SEGMENTS
from tests.rpc.front import CAMERA_TOKEN, Front


@pytest.fixture(autouse=True)
def plain_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("GPUMUXD_TARGET", "GPUMUXD_TOKEN"):
        monkeypatch.delenv(name, raising=False)


async def run(front: Front, *arguments: str) -> int:
    return await asyncio.to_thread(main, ["--target", front.target, *arguments])


def printed(detail: ModelDetail, width: int) -> str:
    """A page, without the spaces that tables leave at the ends of lines."""
    data = encode_detail(detail).SerializeToString()
    stream = io.StringIO()
    console = Console(file=stream, width=width, highlight=False)
    show_model(console, asdict(decode_model_detail(data)))
    return "\n".join(line.rstrip() for line in stream.getvalue().splitlines())


SEGMENTS_PAGE = """\
segments
  tenants     camera, search
  class       up to REALTIME
  SLO         30.00 ms
  versions    all
  placement   cpu:0

version 2  READY
  platform    pytorch_pt2, artifact 9f86d081884c7d65
  device      cpu:0
  input       image  FP32[batch, 3, height, width]
  output      mask  FP32[batch, height // 2, width // 2]
  output      score  FP16[batch]
  size        batch 1 .. 64, at most 16 in a request (batch_max in model.toml)
  size        height 32 .. 512 in steps of 32
  size        width 32 .. 512 in steps of 32
  parameters  25.6 M (25,557,032)
  memory      weights 102.0 MiB, one run 12.5 MiB
  groups      51, the longest at load is number 12 (nodes 96 .. 98): 11.20 ms at
              batch 16
  bound       8.00 ms (what the SLO of voice leaves)

  batch  height  width  run at load  longest group                  beyond bound
      1     256    256      1.20 ms         310 us  nodes 96 .. 98  0
     16     256    256     91.00 ms       11.20 ms  nodes 96 .. 98  1

  Not preemptible within the bound at batch 16 and more: its longest group
  (nodes 96 .. 98) takes 11.20 ms, 3.20 ms beyond the bound of 8.00 ms; a
  request of that size can delay urgent work by 11.20 ms.
  Set batch_max = 1 in model.toml, or raise slo_ms of voice.
  height was measured at 256 of 32 .. 512; how long other sizes take is learnt
  from requests.

version 1  UNAVAILABLE
  replaced by version 2"""

FIXED_PAGE = """\
fixed

version 3  READY
  tenants     everyone
  class       up to STANDARD
  SLO         none
  versions    latest
  platform    onnxruntime_onnx, artifact 0a
  device      cpu:1
  input       x  INT8[1, 4]
  output      y  INT8[1, 4]
  size        all fixed
  parameters  12
  memory      weights 12 B, one run 0 B
  groups      1, the longest at load is number 0 (node 0): 790 us
  bound       not known at this moment

  run at load  longest group          beyond bound
       800 us         790 us  node 0  ?

  Not known at this moment: cpu:1 has not told its bound. Ask again.

UNAVAILABLE
  model.toml is not TOML"""


def test_the_page_at_80_columns() -> None:
    assert printed(SEGMENTS, 80) == SEGMENTS_PAGE
    assert printed(FIXED, 80) == FIXED_PAGE


def test_on_a_pipe_a_row_and_a_sentence_are_one_line() -> None:
    page = SEGMENTS_PAGE.replace("at\n              batch 16", "at batch 16")
    for end, start in (("longest group", "(nodes"), ("ms; a", "request"), ("is learnt", "from")):
        page = page.replace(f"{end}\n  {start}", f"{end} {start}")
    assert printed(SEGMENTS, PIPE_COLUMNS) == page


def with_loaded(detail: ModelDetail, **changes: Any) -> ModelDetail:
    """The page of its first version alone, with other values in what is loaded."""
    first = detail.versions[0]
    assert first.loaded is not None
    return replace(detail, versions=(replace(first, loaded=replace(first.loaded, **changes)),))


@pytest.mark.parametrize(
    ("bound", "row"),
    [
        # bound, what the page says of it
        (BoundView(5_000_000, BoundOrigin.STATED), "5.00 ms (stated, preemption_delay_ms_max)"),
        (BoundView(2_000_000, BoundOrigin.SLICE_MAX), "2.00 ms (slice_ms_max, no SLO leaves less)"),
        (BoundView(0, BoundOrigin.LAXITY, "voice"), "0 us (what the SLO of voice leaves)"),
        (BoundView(7, BoundOrigin.LAXITY, "segments"), "0 us (what the SLO of this model leaves)"),
        (BoundView(7, BoundOrigin.LAXITY), "0 us (what the SLO of another model leaves)"),
        (BoundView(None, BoundOrigin.NO_SLICING), "none (slicing = none)"),
        (BoundView(None, BoundOrigin.FIXED), "none (slicing has fixed sync points)"),
        (BoundView(None, BoundOrigin.NO_ORDER), "none (order = fifo)"),
        (
            BoundView(None, BoundOrigin.SLO, "voice"),
            "none (its longest group takes more than the laxity of voice)",
        ),
        (BoundView(None, BoundOrigin.UNKNOWN), "not known at this moment"),
    ],
)
def test_the_page_says_where_the_bound_comes_from(bound: BoundView, row: str) -> None:
    assert f"\n  bound       {row}\n" in printed(with_loaded(SEGMENTS, bound=bound), 80)


def test_the_page_names_all_devices_that_have_a_model() -> None:
    both = with_loaded(SEGMENTS, replicas=("cpu:0", "cpu:1 (lost)"))
    first = both.versions[0]
    assert first.policy is not None
    policy = replace(first.policy, replicas="all")
    text = printed(replace(both, versions=(replace(first, policy=policy),)), PIPE_COLUMNS)
    assert "\n  placement   cpu:0\n  replicas    all\n" in text
    assert "\n  replicas    cpu:0, cpu:1 (lost); what follows is of cpu:0\n" in text
    assert "replicas" not in printed(with_loaded(SEGMENTS, replicas=("cpu:0",)), PIPE_COLUMNS)


def test_figures_of_all_sizes_are_readable() -> None:
    for changes, row in (
        ({"parameter_count": 999}, "parameters  999\n"),
        ({"parameter_count": 22_713}, "parameters  22.7 k (22,713)\n"),
        ({"parameter_count": 7_000_000_000}, "parameters  7.0 G (7,000,000,000)\n"),
        ({"weights_bytes": 2048, "frame_bytes": 3}, "weights 2.0 KiB, one run 3 B\n"),
        ({"batch_max": 64}, "size        batch 1 .. 64\n"),
        ({"buckets": ()}, "groups      51\n"),
    ):
        assert row in printed(with_loaded(SEGMENTS, **changes), 80)


def test_more_groups_beyond_the_bound_than_are_told_and_sizes_nobody_may_ask_for() -> None:
    loaded = SEGMENTS.versions[0].loaded
    assert loaded is not None
    large = loaded.buckets[2]
    page = printed(with_loaded(SEGMENTS, buckets=(replace(large, is_allowed=True),)), 80)
    assert "node 99  16+" in page
    assert "at batch 32, height 256, width 256" in " ".join(page.split()), "the only one"
    page = printed(with_loaded(SEGMENTS, buckets=(large,)), 80)
    assert "node 99  16+" in page, "better than an empty table"


def test_an_artifact_of_fixed_sizes_hints_at_the_export() -> None:
    row = "\n  size        all fixed (gpumuxd export lets the batch vary)\n"
    assert row in printed(with_loaded(FIXED, platform="pytorch_pt2"), 80)
    assert "all fixed" not in printed(SEGMENTS, 80)


def test_versions_with_different_manifests_have_each_their_own() -> None:
    first, second = SEGMENTS.versions
    assert second.policy is not None
    other = replace(second, policy=replace(second.policy, tenants=(), slo_ns=None))
    lines = printed(replace(SEGMENTS, versions=(first, other)), 80).splitlines()
    assert lines[:3] == ["segments", "", "version 2  READY"]
    assert lines[-7:] == [
        "version 1  UNAVAILABLE",
        "  replaced by version 2",
        "  tenants     none",
        "  class       up to REALTIME",
        "  SLO         none",
        "  versions    all",
        "  placement   cpu:0",
    ]


def test_colours_are_for_terminals(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")
    data = asdict(decode_model_detail(encode_detail(SEGMENTS).SerializeToString()))
    for is_terminal in (True, False):
        stream = io.StringIO()
        show_model(Console(file=stream, width=80, force_terminal=is_terminal), data)
        assert ("\x1b[32mREADY" in stream.getvalue()) is is_terminal
        assert ("\x1b" in stream.getvalue()) is is_terminal


async def test_the_command(front: Front, capsys: pytest.CaptureFixture[str]) -> None:
    assert await run(front, "model", "fixed") == 0
    out = capsys.readouterr().out
    assert [line.rstrip() for line in out.splitlines()] == FIXED_PAGE.splitlines()
    assert await run(front, "model", "segments", "--version", "1") == 0
    out = capsys.readouterr().out
    assert "version 1  UNAVAILABLE" in out
    assert "version 2  READY" not in out


async def test_json_is_the_same_as_data(front: Front, capsys: pytest.CaptureFixture[str]) -> None:
    assert await run(front, "model", "segments", "--json") == 0
    page = json.loads(capsys.readouterr().out)
    assert page["name"] == "segments"
    loaded = page["versions"][0]["loaded"]
    assert loaded["inputs"][0]["shape"] == ["batch", "3", "height", "width"]
    assert loaded["buckets"][2]["longest"]["device_ns"] == 22_000_000
    assert loaded["is_preemptible"] is False
    assert loaded["verdict"].startswith("Not preemptible within the bound at batch 16")
    assert page["versions"][1]["loaded"] is None


async def test_a_model_that_is_not_there_is_1(
    front: Front, capsys: pytest.CaptureFixture[str]
) -> None:
    assert await run(front, "model", "nobody") == 1
    assert await run(front, "model", "segments", "--version", "3") == 1
    err = capsys.readouterr().err
    assert "NOT_FOUND: no model 'nobody'" in err
    assert "NOT_FOUND: model 'segments' has no version '3'" in err


async def test_a_tenant_may_ask_too(front: Front) -> None:
    arguments = ["--target", front.shared, "--token", CAMERA_TOKEN, "model", "fixed"]
    assert await asyncio.to_thread(main, arguments) == 0


@pytest.mark.parametrize(
    ("arguments", "code", "told"),
    [
        (("model",), 2, "usage: gpumuxctl model"),
        (("models", "--help"), 0, "`gpumuxctl model NAME`"),
        (("--help",), 0, "one model: what it takes, how long it runs"),
    ],
)
def test_the_command_is_found(
    arguments: tuple[str, ...], code: int, told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == code
    captured = capsys.readouterr()
    assert told in " ".join((captured.out + captured.err).split())


def test_the_document_shows_a_page_as_it_is() -> None:
    document = (Path(__file__).parents[2] / "docs" / "model-page.md").read_text()
    assert f"```\n{SEGMENTS_PAGE}\n```" in document
    for origin in ("stated, `preemption_delay_ms_max`", "`slice_ms_max`, no SLO leaves less"):
        assert f"| {origin} |" in document
