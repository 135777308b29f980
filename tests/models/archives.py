"""Small `.pt2` archives written by hand, without torch, so that each test can spoil one thing.

The good one is `y = linear(x, w, b)` with a dynamic batch, as torch 2.13 would write it.
"""

import copy
import io
import json
import struct
import zipfile
from collections.abc import Mapping
from typing import Any

FLOAT32 = 7
STRIDED = 7
BATCH_EXPRESSION = "Symbol('s0', positive=True, integer=True)"


def sym(size: int | str, hint: int = 2) -> dict[str, Any]:
    if isinstance(size, int):
        return {"as_int": size}
    return {"as_expr": {"expr_str": size, "hint": {"as_int": hint}}}


def meta(*sizes: int | str, dtype: int = FLOAT32, strides: tuple[int, ...] | None = None) -> Any:
    if strides is None:
        strides = (1,) * len(sizes)
    return {
        "dtype": dtype,
        "sizes": [sym(size) for size in sizes],
        "strides": [sym(stride) for stride in strides],
        "storage_offset": sym(0),
        "requires_grad": False,
        "device": {"type": "cpu", "index": None},
        "layout": STRIDED,
    }


def tensor(name: str) -> dict[str, Any]:
    return {"as_tensor": {"name": name}}


def argument(name: str, value: dict[str, Any], kind: int = 1) -> dict[str, Any]:
    return {"name": name, "arg": value, "kind": kind}


def node(target: str, inputs: list[dict[str, Any]], *results: str) -> dict[str, Any]:
    if not target.startswith(("torch.", "_operator.")):
        target = f"torch.ops.aten.{target}"
    return {
        "target": target,
        "inputs": inputs,
        "outputs": [tensor(result) for result in results],
        "metadata": {},
    }


LINEAR = node(
    "linear.default",
    [
        argument("input", tensor("x")),
        argument("weight", tensor("w")),
        argument("bias", tensor("b")),
    ],
    "y",
)


def good_graph() -> dict[str, Any]:
    """The content of models/model.json; a new one each time, to be edited."""
    return copy.deepcopy(
        {
            "graph_module": {
                "graph": {
                    "inputs": [tensor("w"), tensor("b"), tensor("x")],
                    "outputs": [tensor("y")],
                    "nodes": [LINEAR],
                    "tensor_values": {
                        "x": meta(BATCH_EXPRESSION, 4),
                        "y": meta(BATCH_EXPRESSION, 3),
                    },
                },
                "signature": {
                    "input_specs": [
                        {"parameter": {"arg": {"name": "w"}, "parameter_name": "lin.weight"}},
                        {"parameter": {"arg": {"name": "b"}, "parameter_name": "lin.bias"}},
                        {"user_input": {"arg": tensor("x")}},
                    ],
                    "output_specs": [{"user_output": {"arg": tensor("y")}}],
                },
            },
            "range_constraints": {"s0": {"min_val": 1, "max_val": 64}},
            "schema_version": {"major": 8, "minor": 20},
            "torch_version": "2.13.0",
        }
    )


def payload(path_name: str, tensor_meta: dict[str, Any] | None) -> dict[str, Any]:
    return {
        "path_name": path_name,
        "is_param": True,
        "use_pickle": False,
        "tensor_meta": tensor_meta,
    }


def good_weights() -> dict[str, Any]:
    """The content of data/weights/model_weights_config.json."""
    return {
        "config": {
            "lin.weight": payload("weight_0", meta(3, 4, strides=(4, 1))),
            "lin.bias": payload("weight_1", meta(3)),
        }
    }


WEIGHT_BYTES = struct.pack("<12f", *range(12))
BIAS_BYTES = struct.pack("<3f", 0.5, 1.5, 2.5)


def members(
    graph: dict[str, Any] | None = None,
    weights: dict[str, Any] | None = None,
    constants: dict[str, Any] | None = None,
) -> dict[str, bytes]:
    """The files of an archive, by their path below its root."""
    return {
        "data/weights/weight_0": WEIGHT_BYTES,
        "data/weights/weight_1": BIAS_BYTES,
        "data/weights/model_weights_config.json": encoded(weights or good_weights()),
        "data/constants/model_constants_config.json": encoded(constants or {"config": {}}),
        "models/model.json": encoded(graph or good_graph()),
        "archive_format": b"pt2",
        "archive_version": b"0",
        "byteorder": b"little",
    }


def encoded(value: Any) -> bytes:
    return json.dumps(value).encode()


def archive(
    files: Mapping[str, bytes], root: str = "m", compression: int = zipfile.ZIP_STORED
) -> io.BytesIO:
    """The zip file itself."""
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", compression) as zipped:
        for name, data in files.items():
            zipped.writestr(f"{root}/{name}", data)
    out.seek(0)
    return out
