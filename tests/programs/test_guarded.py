"""Operators with a check of ours before torch's: legal calls give what torch gives, others an error
where torch would leave the tensor's memory."""

from collections.abc import Sequence

import pytest
import torch

from gpumuxd.programs.operators import overload_of, resolve

BAG = "embedding_bag.padding_idx"
NORM = "_weight_norm.default"
TABLE = torch.arange(40.0).reshape(10, 4)


def bag(indices: Sequence[int], offsets: Sequence[int], *more: object) -> list[torch.Tensor]:
    arguments = (TABLE, torch.tensor(indices), torch.tensor(offsets, dtype=torch.int64), *more)
    return list(resolve(f"aten.{BAG}")(*arguments))


@pytest.mark.parametrize("mode", [0, 1, 2])
@pytest.mark.parametrize(
    ("offsets", "include_last"), [([0], False), ([0, 0, 3], False), ([0, 4], True)]
)
def test_bags_are_torchs(mode: int, offsets: list[int], include_last: bool) -> None:
    more = (False, mode, False, None, include_last, None)
    (got, *_) = bag([1, 2, 9, 0], offsets, *more)
    want = overload_of(BAG)(TABLE, torch.tensor([1, 2, 9, 0]), torch.tensor(offsets), *more)[0]
    assert torch.equal(got, want)


@pytest.mark.parametrize(
    ("indices", "offsets", "said"),
    [
        ([1, 2, 3, 4], [],                 "expected a row of offsets"),
        ([1, 2, 3, 4], [[0, 2]],           "expected a row of offsets"),
        ([1, 2, 3, 4], [0, -400_000, 2],   "offsets of bags fall"),
        ([1, 2, 3, 4], [0, 3, 1],          "offsets of bags fall"),
        ([1, 2, 3, 4], [-4, 2],            "offsets of -4 to 2 for 4"),
        ([1, 2, 3, 4], [0, 5],             "offsets of 0 to 5 for 4"),
    ],
)  # fmt: skip
def test_offsets_that_would_leave_the_table(
    indices: list[int], offsets: list[int], said: str
) -> None:
    with pytest.raises(IndexError, match=said):
        bag(indices, offsets, False, 0, False, None, False, None)


@pytest.mark.parametrize("index", [10, -1, 1 << 40])
@pytest.mark.parametrize("mode", [0, 1, 2])
def test_torch_checks_the_indices(index: int, mode: int) -> None:
    with pytest.raises((RuntimeError, IndexError)):
        bag([1, index], [0], False, mode, False, None, False, None)


@pytest.mark.parametrize(("dim", "shape"), [(0, (4, 1, 1)), (2, (1, 1, 5))])
def test_weight_norm_is_torchs(dim: int, shape: tuple[int, ...]) -> None:
    direction, length = torch.randn(4, 3, 5), torch.rand(shape)
    got = resolve(f"aten.{NORM}")(direction, length, dim)
    assert torch.equal(got, overload_of(NORM)(direction, length, dim))


@pytest.mark.parametrize(
    ("length", "dim", "error"),
    [
        (torch.ones(1, 1, 1),                        0,  IndexError),
        (torch.ones(4),                              0,  IndexError),
        (torch.ones(4, 1, 1),                        2,  IndexError),
        (torch.ones(1, 1, 5),                        -1, IndexError),
        (torch.ones(4, 1, 1),                        9,  IndexError),
        (torch.ones(4, 1, 1, dtype=torch.float16),   0,  TypeError),
        (torch.ones(4, 1, 1, dtype=torch.int64),     0,  TypeError),
    ],
)  # fmt: skip
def test_lengths_that_torch_would_read_beyond(
    length: torch.Tensor, dim: int, error: type[Exception]
) -> None:
    with pytest.raises(error):
        resolve(f"aten.{NORM}")(torch.randn(4, 3, 5), length, dim)
