"""The tensors of the members of a run: what they bring together, and what each gets of it.

One member's tensors are read and written where they lie. Several members' rows are put one after
the other, in new memory. Where other sizes than the rows differ, what is missing up to the largest
is filled with the value that the model's manifest states for that input, and cut off what comes
out. It must not know requests: whoever joined them made sure that they fit.
"""

from collections.abc import Sequence

import torch

Fill = int | float

Tensors = Sequence[torch.Tensor]


class OutputTooLarge(Exception):
    """An output that does not fit where its request reserved room."""


class OutputMistyped(Exception):
    """An output of another data type than its artifact declares, or of one that no client knows."""


class RowsMixed(Exception):
    """An output that does not have one row for each row that went in."""


class Binding:
    """The tensors of one request. `results` is written by the device thread, read after."""

    __slots__ = ("inputs", "regions", "results")

    def __init__(self, inputs: Tensors, regions: Tensors) -> None:
        self.inputs = inputs
        self.regions = regions
        self.results: tuple[torch.Tensor, ...] = ()

    @property
    def rows(self) -> int:
        """What it brings to a run that is shared."""
        return self.inputs[0].shape[0]

    def write(self, outputs: Tensors) -> None:
        """Put the outputs where there is room for them."""
        results = []
        for index, (output, region) in enumerate(zip(outputs, self.regions, strict=True)):
            if output.dtype is region.dtype and output.shape == region.shape:
                # As expected, which is nearly always: no views are made, 5 us and not 25.
                results.append(region.copy_(output))
                continue
            if output.dtype is not region.dtype:
                raise OutputMistyped(
                    f"output {index} is of type {output.dtype}, its artifact declares "
                    f"{region.dtype}"
                )
            if output.nbytes > region.nbytes:
                raise OutputTooLarge(
                    f"output {index} of shape {list(output.shape)} takes {output.nbytes} bytes, "
                    f"{region.nbytes} were reserved"
                )
            if output.numel() == 0:
                results.append(torch.empty_like(output))
                continue
            room = region.view(-1).view(torch.uint8)[: output.nbytes]
            results.append(room.view(output.dtype).view(output.shape).copy_(output))
        self.results = tuple(results)


def gathered(members: Sequence[Tensors], fills: Sequence[Fill]) -> list[torch.Tensor]:
    """The inputs of a run that is shared. `fills` has a value for each input, or none at all where
    nothing may be padded."""
    return [
        _joined([inputs[index] for inputs in members], fills[index] if fills else None)
        for index in range(len(members[0]))
    ]


def _joined(parts: Tensors, fill: Fill | None) -> torch.Tensor:
    shape = parts[0].shape[1:]
    if all(part.shape[1:] == shape for part in parts):
        return torch.cat(list(parts))
    assert fill is not None, "who may not be padded has the same sizes"
    largest = [max(sizes) for sizes in zip(*(part.shape[1:] for part in parts), strict=True)]
    rows = sum(part.shape[0] for part in parts)
    joined = torch.full((rows, *largest), fill, dtype=parts[0].dtype)
    first = 0
    for part in parts:
        place = joined[first : first + part.shape[0]]
        place[tuple(slice(size) for size in part.shape)] = part
        first += part.shape[0]
    return joined


def scatter(
    outputs: Tensors,
    rows: Sequence[int],
    receivers: Sequence[Binding | None],
    is_padded: bool,
) -> None:
    """Give each member that is still there (None: it is gone) its rows, without what it was padded
    with. Raises RowsMixed before anything is written."""
    for index, output in enumerate(outputs):
        if output.dim() == 0 or output.shape[0] != sum(rows):
            raise RowsMixed(
                f"output {index} of a run of {sum(rows)} rows has shape {list(output.shape)}"
            )
    first = 0
    for count, receiver in zip(rows, receivers, strict=True):
        if receiver is not None:
            parts = [output[first : first + count] for output in outputs]
            if is_padded:
                pairs = zip(parts, receiver.regions, strict=True)
                parts = [cut_back(part, region.shape) for part, region in pairs]
            receiver.write(parts)
        first += count


def cut_back(part: torch.Tensor, expected: Sequence[int]) -> torch.Tensor:
    """No larger in any dimension than it would be alone."""
    return part[tuple(slice(size) for size in expected)] if part.dim() == len(expected) else part
