"""The demo's verdict: right results pass, and each kind of wrong one is named."""

from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from gpumuxd.demo.report import check_results, make_table, percentile_ms, write_picture
from gpumuxd.demo.traffic import Traffic

CLOSE, DISTANT = np.array([1.0, 0.0]), np.array([0.0, 1.0])


def traffic(
    *,
    voice: float = 0.9,
    silence: float = 0.1,
    error: float = 0.0,
    pair: np.ndarray = CLOSE,
    other: np.ndarray = DISTANT,
) -> Traffic:
    return Traffic(
        voice=[(i / 100, i / 1000) for i in range(1, 101)],
        speech=[(True, voice), (False, silence)],
        sentences=20,
        embedding_error=error,
        embeddings={0: CLOSE, 1: pair, 2: other},
        seconds=10.0,
    )


def wrong(one: Traffic) -> list[str]:
    return [check.claim for check in check_results({"phase": one}) if not check.is_true]


def test_right_results_pass() -> None:
    assert len(list(check_results({"phase": traffic()}))) == 4
    assert wrong(traffic()) == []
    assert wrong(traffic(error=1e-6)) == []


@pytest.mark.parametrize(
    ("one", "claim"),
    [
        (traffic(voice=0.7), "0.70 on voice"),
        (traffic(silence=0.3), "0.30 on silence"),
        (traffic(error=2e-6), "embeddings equal"),
        (traffic(error=float("nan")), "embeddings equal"),
        (traffic(pair=DISTANT), "a close pair"),
        (traffic(other=CLOSE), "a close pair"),
    ],
)
def test_each_wrong_result_is_named(one: Traffic, claim: str) -> None:
    (found,) = wrong(one)
    assert claim in found


def test_without_sentences_there_is_nothing_to_say_of_them() -> None:
    alone = traffic()
    alone.embeddings.clear()
    assert len(list(check_results({"alone": alone}))) == 2


def test_the_table_fits_a_terminal_of_80_columns() -> None:
    one = traffic()
    table = make_table({"loaded, none preempted": one, "loaded, preempting": one})
    console = Console(width=80)
    with console.capture() as captured:
        console.print(table)
    assert "loaded, none preempted" in captured.get()


def test_the_table_and_the_picture_show_every_phase(tmp_path: Path) -> None:
    phases = {"alone": traffic(), "loaded": traffic()}
    table = make_table(phases)
    assert table.row_count == 2
    assert [column.header for column in table.columns][3] == "late (>32 ms)"
    assert percentile_ms(phases["alone"], 50) == pytest.approx(50.5)
    write_picture(phases, tmp_path / "new" / "demo.png")
    assert (tmp_path / "new" / "demo.png").read_bytes().startswith(b"\x89PNG")
