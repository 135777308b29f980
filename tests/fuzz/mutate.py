"""Mutations of trees (JSON, msgpack), of zip archives and of plain bytes. Seeded, no torch."""

import copy
import io
import json
import random
import zipfile
from collections.abc import Mapping
from typing import Any

INTEGERS = (
    *(0, 1, 2, 3, 4, 7, 8, 16, 64, 255, 4096, 65_536, -1, -2, -4, -64),
    *(1 << 31, (1 << 31) - 1, -(1 << 31), 1 << 32, 1 << 40, (1 << 63) - 1, 1 << 63, -(1 << 63)),
)
FLOATS = (0.0, -0.0, 0.5, -1.0, 1e-45, 1e30, -1e300)
TEXTS = (
    *("", "x", "y", "w", "b", "self", "out", "dim", "dtype", "input", "size", "\0", "é", "\udfff"),
    *("NaN", "Infinity", "-Infinity", "Symbol('s0')", "Add(Symbol('s0'), Integer(1))", "../x"),
    *("as_tensor", "as_int", "as_ints", "as_tensors", "as_sym_int", "as_none", "a" * 200),
)  # fmt: skip

BYTES_MAX = 1 << 20


def mutate_bytes(data: bytes, draw: random.Random) -> bytes:
    """A few changes anywhere."""
    out = bytearray(data[:BYTES_MAX])
    for _ in range(draw.randint(1, 4)):
        place = draw.randrange(len(out) + 1)
        match draw.randrange(6):
            case 0 if place < len(out):
                out[place] ^= 1 << draw.randrange(8)
            case 1:
                out[place : place + draw.choice((1, 2, 4))] = b""
            case 2:
                out[place:place] = draw.randbytes(draw.choice((1, 2, 4, 8)))
            case 3:
                out[place : place + 4] = draw.choice((b"\xff" * 4, b"\0" * 4, b"\xff\xff\xff\x7f"))
            case 4:
                start = draw.randrange(len(out) + 1)
                out[place:place] = out[start : start + draw.randint(1, 64)]
            case _:
                out = out[:place]
    return bytes(out)


def mutate_tree(tree: Any, draw: random.Random, times: int = 3) -> Any:
    """A copy with one to `times` changes."""
    root = [copy.deepcopy(tree)]
    for _ in range(draw.randint(1, times)):
        places = _places(root)
        holder, key = draw.choice(places)
        _change(holder, key, places, draw)
    return root[0]


def _places(root: list[Any]) -> list[tuple[Any, Any]]:
    """Every value, as the container that holds it and its key there."""
    places: list[tuple[Any, Any]] = []
    queue: list[Any] = [root]
    while queue and len(places) < 20_000:
        holder = queue.pop()
        keys = list(holder) if isinstance(holder, dict) else range(len(holder))
        for key in keys:
            places.append((holder, key))
            if isinstance(holder[key], dict | list):
                queue.append(holder[key])
    return places


def _change(holder: Any, key: Any, places: list[tuple[Any, Any]], draw: random.Random) -> None:
    value = holder[key]
    other_holder, other_key = draw.choice(places)
    try:
        other = copy.deepcopy(other_holder[other_key])
    except (KeyError, IndexError):  # it went with an earlier change
        other = None
    match draw.randrange(7):
        case 0 if isinstance(holder, dict):
            del holder[key]
        case 1 if isinstance(holder, list) and len(holder) < 1000:
            holder.insert(draw.randint(0, len(holder)), copy.deepcopy(value))
        case 2 if isinstance(holder, list) and len(holder) > 1:
            del holder[key]
        case 3 if isinstance(holder, dict):
            holder[draw.choice(TEXTS)] = holder.pop(key)
        case 4:
            holder[key] = other
        case _:
            holder[key] = _other_value(value, draw)


def _other_value(value: Any, draw: random.Random) -> Any:
    """Of the same type mostly, so that it is looked at more closely."""
    if draw.randrange(8) == 0:
        return draw.choice((None, True, False, [], {}, "", 0, 1.5, [[]], {"as_none": True}))
    if isinstance(value, bool):
        return not value
    if isinstance(value, int):
        return draw.choice((*INTEGERS, value + 1, value - 1, value * 2, -value))
    if isinstance(value, float):
        return draw.choice((*FLOATS, value * 2))
    if isinstance(value, str):
        return draw.choice((*TEXTS, value + value, value[:-1], value + "_", value.upper()))
    return draw.choice((None, [value], {}, []))


def unzip(data: bytes) -> dict[str, bytes] | None:
    """The members below the root, or None if this is no archive."""
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as zipped:
            return {name.partition("/")[2]: zipped.read(name) for name in zipped.namelist()}
    except Exception:
        return None


def zip_up(files: Mapping[str, bytes]) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as zipped:
        for name, data in files.items():
            zipped.writestr(f"m/{name}", data)
    return out.getvalue()


def mutate_archive(data: bytes, draw: random.Random) -> bytes:
    """Mostly what the JSON members say, sometimes which members there are, or the zip's bytes."""
    files = unzip(data)
    if not files or draw.randrange(10) == 0:
        return mutate_bytes(data, draw)
    name = draw.choice(["models/model.json"] * 6 + list(files))
    if name not in files or draw.randrange(20) == 0:
        files.pop(draw.choice(list(files)))
    elif name.endswith(".json"):
        try:
            tree = mutate_tree(json.loads(files[name]), draw)
            files[name] = json.dumps(tree).encode("utf-8", "surrogatepass")
        except (ValueError, RecursionError):
            files[name] = mutate_bytes(files[name], draw)
    else:
        files[name] = mutate_bytes(files[name], draw)
    return zip_up(files)
