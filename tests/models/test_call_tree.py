"""Archives that have no names of ours are named after how the module is called."""

import json
from typing import Any

import pytest

from gpumuxd.models.pt2 import Artifact
from tests.models.archives import archive, good_graph, members, tensor

LEAF = {"type": None, "context": None, "children_spec": []}


def tree(kind: str, context: Any, *children: Any) -> dict[str, Any]:
    return {"type": kind, "context": context, "children_spec": list(children)}


def sequence(*children: Any, kind: str = "builtins.tuple") -> dict[str, Any]:
    return tree(kind, "null", *children)


def mapping(kind: str = "builtins.dict", **children: Any) -> dict[str, Any]:
    return tree(kind, json.dumps(list(children)), *children.values())


def deep(levels: int) -> dict[str, Any]:
    return sequence(deep(levels - 1)) if levels else LEAF


ARGUMENTS = sequence(sequence(LEAF), mapping())


def names(
    out_spec: Any = LEAF, in_spec: Any = ARGUMENTS, args: Any = ("x",), fixed: int = 0
) -> tuple[str, str]:
    """Of an archive with one input and one output that is called so; more inputs are `fixed`."""
    graph = good_graph()
    graph["graph_module"]["module_call_graph"] = [
        {"fqn": "part", "signature": None},
        {
            "fqn": "",
            "signature": {
                "in_spec": in_spec if isinstance(in_spec, str) else json.dumps([1, in_spec]),
                "out_spec": out_spec if isinstance(out_spec, str) else json.dumps([1, out_spec]),
                "forward_arg_names": args,
            },
        },
    ]
    graph["graph_module"]["treespec_namedtuple_fields"] = {"my.Pair": {"field_names": ["left"]}}
    constant = {"constant_input": {"name": "k", "value": {"as_none": True}}}
    graph["graph_module"]["signature"]["input_specs"] += [constant] * fixed
    spec = Artifact(archive(members(graph))).plan.spec
    return spec.inputs[0].name, spec.outputs[0].name


@pytest.mark.parametrize(
    ("out_spec", "name"),
    [
        (LEAF,                                                             "output_0"),
        (sequence(LEAF),                                                   "output_0"),
        (sequence(mapping(a=LEAF), kind="builtins.list"),                  "output_0.a"),
        (mapping(scores=LEAF),                                             "scores"),
        (mapping("collections.OrderedDict", a=sequence(LEAF)),             "a.0"),
        (mapping("transformers.ModelOutput", last=LEAF),                   "last"),
        (tree("builtins.dict", "[7]", LEAF),                               "output_7"),
        (tree("my.Data", '[["field"], ["none"]]', LEAF),                   "field"),
        (tree("collections.namedtuple", "my.Pair", LEAF),                  "left"),
        (tree("collections.defaultdict", {"dict_context": ["k"]}, LEAF),   "k"),
        # From here on: forms that give no names.
        (mapping(**{"a b": LEAF}),                                         "output_0"),
        (mapping(**{"../a": LEAF}),                                        "output_0"),
        (mapping(**{"a" * 65: LEAF}),                                      "output_0"),
        (tree("builtins.dict", "[true]", LEAF),                            "output_0"),
        (tree("builtins.dict", '["a", "b"]', LEAF),                        "output_0"),
        (tree("builtins.dict", "{", LEAF),                                 "output_0"),
        (tree("my.Object", "null", LEAF),                                  "output_0"),
        (tree("my.Object", 5, LEAF),                                       "output_0"),
        (tree("collections.namedtuple", "my.Other", LEAF),                 "output_0"),
        (mapping(a=LEAF, b=LEAF),                                          "output_0"),
        (mapping(),                                                        "output_0"),
        (mapping(a=deep(15)),                                              "a" + ".0" * 15),
        (mapping(a=deep(16)),                                              "output_0"),
        ("[1, " + '{"type": "x", "children_spec": [' * 9000,               "output_0"),
        ("[2, " + json.dumps(mapping(a=LEAF)) + "]",                       "output_0"),
        ("nonsense",                                                       "output_0"),
    ],
)  # fmt: skip
def test_outputs(out_spec: Any, name: str) -> None:
    assert names(out_spec=out_spec) == ("x", name)


@pytest.mark.parametrize(
    ("in_spec", "args", "name"),
    [
        (ARGUMENTS,                                         ["audio"],      "audio"),
        (sequence(sequence(mapping(image=LEAF)), mapping()), ["feats"],     "feats.image"),
        (sequence(sequence(), mapping(image=LEAF)),         ["image"],      "image"),
        (sequence(sequence(), mapping(i=sequence(LEAF))),   ["i"],          "i.0"),
        (ARGUMENTS,                                         None,           "x"),
        (ARGUMENTS,                                         [],             "x"),
        (ARGUMENTS,                                         ["a.b"],        "x"),
        (LEAF,                                              ["audio"],      "x"),
        (sequence(sequence()),                              ["audio"],      "x"),
        ("[]",                                              ["audio"],      "x"),
    ],
)  # fmt: skip
def test_inputs(in_spec: Any, args: list[str] | None, name: str) -> None:
    assert names(in_spec=in_spec, args=args) == (name, "output_0")


def test_arguments_that_are_fixed_have_a_place_and_no_name() -> None:
    called = sequence(sequence(LEAF), mapping(k=LEAF))
    assert names(in_spec=called, args=["audio", "k"], fixed=1) == ("audio", "output_0")
    assert names(in_spec=called, args=["audio", "k"]) == ("x", "output_0"), "two leaves for one"


def test_our_own_names_win() -> None:
    graph = good_graph()
    graph["graph_module"]["module_call_graph"] = [
        {"fqn": "", "signature": {"in_spec": "", "out_spec": json.dumps([1, mapping(a=LEAF)])}}
    ]
    files = members(graph) | {"extra/gpumuxd.json": b'{"inputs": ["i"], "outputs": ["o"]}'}
    spec = Artifact(archive(files)).plan.spec
    assert (spec.inputs[0].name, spec.outputs[0].name) == ("i", "o")


def test_two_outputs_of_one_name_are_numbered() -> None:
    """`{0: ...}` and `{"output_0": ...}` would be one."""
    graph = good_graph()
    graph["graph_module"]["signature"]["output_specs"] *= 2
    graph["graph_module"]["graph"]["outputs"].append(tensor("y"))
    outputs = tree("builtins.dict", '[0, "output_0"]', LEAF, LEAF)
    graph["graph_module"]["module_call_graph"] = [
        {"fqn": "", "signature": {"in_spec": "", "out_spec": json.dumps([1, outputs])}}
    ]
    spec = Artifact(archive(members(graph))).plan.spec
    assert [tensor.name for tensor in spec.outputs] == ["output_0", "output_1"]
