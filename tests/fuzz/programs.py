"""Archives that are well-formed and call one to four allow-listed operators with drawn arguments.

Arguments have the types of the operator's schema and any value: what is refused by the reader is
refused early, so this is what reaches torch. Needs torch, for its schemas.
"""

import random
from functools import cache
from typing import Any

import torch

from gpumuxd.models.operators import Effect, allow_list
from gpumuxd.programs.operators import overload_of
from tests.models import archives

SIZES = (0, 1, 2, 3, 4, 5, 8, 16, 64, 1000, 4096, -1, -2, -5, 1 << 20, 1 << 31, 1 << 40, 1 << 62)
SMALL = (0, 1, 1, 2, 2, 3, 4, -1, -2)
NUMBERS = (0.0, 1.0, -1.0, 0.5, 1e-8, 1e30, "NaN", "Infinity", "-Infinity")
TYPES = (1, 2, 4, 5, 6, 7, 8, 12, 13)

Json = dict[str, Any]


@cache
def operators() -> tuple[str, ...]:
    """Names of the allow-list that this torch has."""
    found = []
    for name, effect in sorted(allow_list().effects.items()):
        try:
            overload_of(name)
        except Exception:
            continue
        found.extend([name] * (1 if effect is Effect.WRITE else 3))
    return tuple(found)


def draw_archive(draw: random.Random) -> bytes:
    """`y` is what the last operator returns."""
    graph = archives.good_graph()
    inner = graph["graph_module"]["graph"]
    tensors = ["x", "w", "b", "i"]
    count = draw.randint(1, 4)
    nodes = [
        _node(draw.choice(operators()), tensors, f"r{number}", draw) for number in range(count)
    ]
    nodes.insert(0, _index_node())
    last = draw.choice(tensors[3:])
    for name in tensors[3:]:
        inner["tensor_values"][name] = archives.meta(archives.BATCH_EXPRESSION, 4)
    inner["nodes"] = nodes
    inner["outputs"] = [archives.tensor(last)]
    graph["graph_module"]["signature"]["output_specs"] = [
        {"user_output": {"arg": archives.tensor(last)}}
    ]
    return archives.archive(archives.members(graph=graph)).getvalue()


def _index_node() -> Json:
    """Something of integers, for operators that take indices."""
    inputs = [archives.argument("end", {"as_int": 4})]
    return archives.node("arange.default", inputs, "i")


def _node(name: str, tensors: list[str], result: str, draw: random.Random) -> Json:
    schema = overload_of(name)._schema
    inputs: list[Json] = []
    is_keyword = False
    for position, argument in enumerate(schema.arguments):
        is_keyword = is_keyword or argument.kwarg_only
        optional = argument.has_default_value()
        if optional and (is_keyword or draw.randrange(3) == 0):
            if draw.randrange(4):
                is_keyword = True
                continue
            is_keyword = True
        value = _value(str(argument.real_type), tensors, draw, is_first=position == 0)
        inputs.append(archives.argument(argument.name, value, 2 if is_keyword else 1))
    returns = [str(value.type) for value in schema.returns]
    node = archives.node(name, inputs)
    if returns == ["Tensor"]:
        node["outputs"] = [archives.tensor(result)]
        tensors.append(result)
    elif returns == ["List[Tensor]"]:
        names = [f"{result}_{i}" for i in range(2)]
        node["outputs"] = [{"as_tensors": [{"name": each} for each in names]}]
        tensors.extend(names)
    elif returns and all(each == "Tensor" for each in returns):
        names = [f"{result}_{i}" for i in range(len(returns))]
        node["outputs"] = [archives.tensor(each) for each in names]
        tensors.extend(names)
    return node


def _value(kind: str, tensors: list[str], draw: random.Random, is_first: bool) -> Json:
    if draw.randrange(50) == 0:
        kind = draw.choice(("int", "str", "Tensor", "List[int]", "ScalarType", "bool"))
    if kind.startswith("Optional["):
        if draw.randrange(3) == 0:
            return {"as_none": True}
        kind = kind.removeprefix("Optional[").removesuffix("]")
    sizes = SIZES if draw.randrange(3) == 0 else SMALL
    length = draw.choice((0, 1, 1, 2, 2, 2, 3, 4))
    match kind:
        case "Tensor":
            return archives.tensor("x" if is_first and draw.randrange(2) else draw.choice(tensors))
        case "List[Tensor]":
            return {"as_tensors": [{"name": draw.choice(tensors)} for _ in range(length)]}
        case "List[Optional[Tensor]]":
            return {"as_optional_tensors": [_optional(tensors, draw) for _ in range(length)]}
        case "int" | "SymInt":
            return {"as_int": draw.choice(sizes)}
        case "List[int]" | "List[SymInt]":
            return {"as_ints": [draw.choice(sizes) for _ in range(length)]}
        case "float" | "number" | "Scalar":
            return draw.choice(({"as_float": draw.choice(NUMBERS)}, {"as_int": draw.choice(SIZES)}))
        case "List[float]":
            return {"as_floats": [draw.choice(NUMBERS) for _ in range(length)]}
        case "bool":
            return {"as_bool": draw.random() < 0.5}
        case "str":
            texts = (
                "same",
                "valid",
                "reflect",
                "replicate",
                "circular",
                "constant",
                "floor",
                "none",
            )
            return {"as_string": draw.choice((*texts, "trunc", "tanh", "ij,jk->ik", "a..."))}
        case "ScalarType":
            return {"as_scalar_type": draw.choice(TYPES)}
        case "Device":
            return {"as_device": {"type": draw.choice(("cpu", "cuda", "meta")), "index": None}}
        case "MemoryFormat":
            return {"as_memory_format": draw.choice((1, 2, 3, 4))}
        case "Layout":
            return {"as_layout": 7}
        case _:
            return {"as_int": draw.choice(SMALL)}


def _optional(tensors: list[str], draw: random.Random) -> Json:
    if draw.randrange(3) == 0:
        return {"as_none": True}
    return archives.tensor(draw.choice(tensors))


def inputs(batch: int) -> dict[str, torch.Tensor]:
    """A request for such an archive."""
    return {"x": torch.arange(batch * 4, dtype=torch.float32).reshape(batch, 4) / 8}
