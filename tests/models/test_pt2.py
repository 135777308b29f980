"""The reader of artifacts against archives with one thing wrong; every refusal says what."""

import io
import sys
import zipfile
from collections.abc import Callable
from typing import Any

import pytest

from gpumuxd.errors import InvalidModel
from gpumuxd.models import plan as plans
from gpumuxd.models.limits import ReadLimits
from gpumuxd.models.pt2 import Artifact
from gpumuxd.models.spec import Symbol, TensorSpec
from tests.models import archives
from tests.models.archives import archive, argument, good_graph, members, meta, node, tensor


def read(file: io.BytesIO, limits: ReadLimits | None = None) -> Artifact:
    return Artifact(file, limits or ReadLimits())


def refusal(file: io.BytesIO, limits: ReadLimits | None = None) -> str:
    with pytest.raises(InvalidModel) as caught:
        read(file, limits)
    return caught.value.message


def test_a_good_archive_becomes_a_plan() -> None:
    artifact = read(archive(members()))
    plan = artifact.plan
    assert plan.spec.inputs == (TensorSpec("x", "FP32", (("batch",), 4)),)
    assert plan.spec.outputs == (TensorSpec("output_0", "FP32", (("batch",), 3)),)
    assert plan.spec.symbols == (Symbol("batch", 1, 64),)
    assert plan.spec.batch_max == 64
    assert plan.size_hints == (2,)
    assert plan.nodes == (
        plans.Node(
            operator="aten.linear.default",
            arguments=(plans.Slot(0), plans.Weight(0), plans.Weight(1)),
            keywords=(),
            results=(1,),
            returns_list=False,
            clears=(0,),
        ),
    )
    assert plan.outputs == (plans.Slot(1),)
    assert plans.decode(plans.encode(plan)) == plan


def test_weights_are_one_aligned_image() -> None:
    artifact = read(archive(members()))
    image = bytearray()
    artifact.write_weights(image.extend)
    assert len(image) == artifact.weights_bytes == 128
    weight, bias = artifact.plan.weights
    assert weight == plans.WeightEntry(0, "FP32", (3, 4), (4, 1))
    assert bias == plans.WeightEntry(64, "FP32", (3,), (1,))
    assert image[0:48] == archives.WEIGHT_BYTES
    assert image[64:76] == archives.BIAS_BYTES


def test_tied_weights_share_their_bytes() -> None:
    weights = archives.good_weights()
    weights["config"]["lin.bias"] = archives.payload("weight_0", meta(3, strides=(4,)))
    artifact = read(archive(members(weights=weights)))
    assert [entry.offset for entry in artifact.plan.weights] == [0, 0]
    assert artifact.weights_bytes == 64


def test_a_weight_that_nothing_reads_takes_no_memory() -> None:
    graph = good_graph()
    graph["graph_module"]["graph"]["nodes"][0]["inputs"].pop()
    assert len(read(archive(members(graph))).plan.weights) == 1


def test_names_beside_the_graph_are_used() -> None:
    files = members()
    files["extra/gpumuxd.json"] = archives.encoded(
        {"inputs": ["features"], "outputs": ["score"], "dynamic": {"features": {"0": "rows"}}}
    )
    spec = read(archive(files)).plan.spec
    assert [spec.inputs[0].name, spec.outputs[0].name] == ["features", "score"]
    assert spec.symbols[0].name == "rows"
    assert spec.batch_symbol is None


NAMES = {"inputs": ["a"], "outputs": ["b"]}


@pytest.mark.parametrize(
    ("names", "said"),
    [
        ({**NAMES, "inputs": []}, "names 0 inputs, the graph has 1"),
        ({**NAMES, "outputs": ["b", "c"]}, "names 2 outputs, the graph has 1"),
        ({**NAMES, "inputs": ["../a"]}, "can't name an input"),
        ({**NAMES, "inputs": ["a" * 200]}, "can't name an input"),
        ({**NAMES, "dynamic": {"a": {"0": "min"}}}, "'min' can't name a dynamic dimension"),
        ({**NAMES, "dynamic": {"a": {"0": "b c"}}}, "can't name a dynamic dimension"),
        ({**NAMES, "dynamic": {"a": {"7": "n"}}}, "has no dimension '7'"),
        ({**NAMES, "dynamic": {"a": {"-1": "n"}}}, "has no dimension '-1'"),
        ({**NAMES, "more": 1}, "unknown field `more`"),
        ({**NAMES, "inputs": "a"}, "Expected `array`"),
    ],
)
def test_names_are_checked(names: dict[str, Any], said: str) -> None:
    files = members()
    files["extra/gpumuxd.json"] = archives.encoded(names)
    assert said in refusal(archive(files))


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"", "0 bytes that begin with b''"),
        (b"\x7fELF and more", r"begin with b'\x7fELF'"),
        (b"PK\x03\x04 but no directory", "expected a .pt2 archive"),
    ],
)
def test_what_is_no_zip_file(data: bytes, said: str) -> None:
    message = refusal(io.BytesIO(data))
    assert said in message
    assert "torch.export.save" in message


def test_every_truncation_is_refused() -> None:
    whole = archive(members()).getvalue()
    for size in range(0, len(whole), 61):
        refusal(io.BytesIO(whole[:size]))


def test_a_flipped_byte_in_a_weight_is_noticed() -> None:
    whole = bytearray(archive(members()).getvalue())
    position = whole.index(archives.WEIGHT_BYTES)
    whole[position + 5] ^= 0xFF
    artifact = read(io.BytesIO(bytes(whole)))
    with pytest.raises(InvalidModel, match="weight_0 is damaged"):
        artifact.write_weights(lambda piece: None)


def test_a_compressed_archive_is_refused() -> None:
    message = refusal(archive(members(), compression=zipfile.ZIP_DEFLATED))
    assert "compressed" in message


def test_a_member_that_is_there_twice_is_refused() -> None:
    out = io.BytesIO(archive(members()).getvalue())
    with zipfile.ZipFile(out, "a") as zipped:
        zipped.writestr("other/models/model.json", b"{}")
    assert "'models/model.json' is in the archive twice" in refusal(out)


@pytest.mark.parametrize(
    ("member", "data", "said"),
    [
        ("archive_format", b"zip", "archive_format: expected 'pt2', got b'zip'"),
        ("archive_version", b"9", "archive_version: expected '0', got b'9'"),
        ("byteorder", b"big", "byteorder: expected 'little', got b'big'"),
        ("archive_format", None, "a zip file without 'archive_format'"),
        ("models/model.json", None, "'models/model.json' is missing"),
        ("models/model.json", b"\x80\x04.", "models/model.json is not what torch.export writes"),
        ("models/model.json", b"[1]", "Expected `object`, got `array`"),
        ("models/model.json", b"[" * 100_000, "models/model.json is not what"),
        ("data/weights/model_weights_config.json", None, "config.json' is missing"),
        ("data/weights/model_weights_config.json", b"{}", "missing required field `config`"),
        ("data/weights/weight_0", None, "'data/weights/weight_0' is missing"),
        ("data/weights/weight_0", b"short", "needs 48 bytes, its file has 5"),
    ],
)
def test_members_that_are_wrong(member: str, data: bytes | None, said: str) -> None:
    files = members()
    if data is None:
        del files[member]
    else:
        files[member] = data
    assert said in refusal(archive(files))


Spoil = Callable[[dict[str, Any]], None]


def spoil_weight(**fields: Any) -> Spoil:
    return lambda weights: weights["config"]["lin.weight"].update(fields)


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (lambda weights: weights["config"].pop("lin.weight"), "'lin.weight' is missing"),
        (spoil_weight(use_pickle=True), "'lin.weight' is a pickle, which can carry code"),
        (spoil_weight(tensor_meta=None), "'lin.weight' is a pickle"),
        (spoil_weight(path_name="../weight_0"), "'../weight_0' is not a file's name"),
        (spoil_weight(path_name="weight_0\0"), "is not a file's name"),
        (spoil_weight(tensor_meta=meta(3, 4, dtype=9)), "a plain data type"),
        (spoil_weight(tensor_meta=meta(3, 1 << 40, strides=(4, 1))), "its file has 48"),
        (spoil_weight(tensor_meta=meta(1 << 62, 1 << 62, strides=(1 << 62, 1))), "its file has 48"),
        (spoil_weight(tensor_meta=meta(3, 4, strides=(4, -1))), "fixed sizes of 0 or more"),
        (spoil_weight(tensor_meta=meta(-3, 4, strides=(4, 1))), "fixed sizes of 0 or more"),
        (spoil_weight(tensor_meta=meta(3, 4, strides=(4,))), "malformed shape"),
        (spoil_weight(tensor_meta=meta(*[1] * 17)), "malformed shape"),
        (spoil_weight(tensor_meta=meta("Symbol('s0')", 4)), "fixed sizes of 0 or more"),
        (
            spoil_weight(tensor_meta={**meta(3, 4), "storage_offset": {"as_int": 1 << 50}}),
            "its file has 48",
        ),
        (spoil_weight(tensor_meta={**meta(3, 4), "layout": 1}), "expected a dense tensor"),
        (spoil_weight(tensor_meta=meta(3, 1 << 64)), "weights_config.json is not what"),
    ],
)
def test_weights_that_are_wrong(spoil: Spoil, said: str) -> None:
    weights = archives.good_weights()
    spoil(weights)
    assert said in refusal(archive(members(weights=weights)))


def nodes_of(graph: dict[str, Any]) -> list[dict[str, Any]]:
    nodes: list[dict[str, Any]] = graph["graph_module"]["graph"]["nodes"]
    return nodes


def with_node(extra: dict[str, Any]) -> dict[str, Any]:
    """The good graph with a node in front of the others."""
    graph = good_graph()
    nodes_of(graph).insert(0, extra)
    return graph


def unary(target: str, operand: str) -> dict[str, Any]:
    return node(target, [argument("self", tensor(operand))], "extra")


@pytest.mark.parametrize(
    ("extra", "said"),
    [
        (node("torch.os.system", [argument("c", {"as_string": "id"})], "z"), "'torch.os.system'"),
        (unary("from_file.default", "x"), "'torch.ops.aten.from_file.default' is not allowed"),
        (unary("empty_strided.default", "x"), "is not allowed: it shows what was in memory before"),
        (unary("torch.ops.prim.device.default", "x"), "'torch.ops.prim.device.default'"),
        (unary("relu", "x"), "'torch.ops.aten.relu' is not allowed"),
        (unary("_operator.matmul", "x"), "'_operator.matmul' is not allowed"),
        (unary("_operator.neg", "x"), "(_operator.neg): expected 1 numbers"),
        (node("_operator.mul", [argument("a", {"as_ints": [1, 2]}), argument("b", {"as_int": 9})],
              "z"), "(_operator.mul): expected 2 numbers"),
        (node("_operator.mod", [argument("a", {"as_string": "%999999999d"}),
                                argument("b", {"as_int": 9})], "z"), "expected 2 numbers"),
        (node("_operator.add", [argument("a", {"as_int": 9})], "z"), "expected 2 numbers"),
        (node("_operator.neg", [argument("a", {"as_int": 9}, 2)], "z"), "expected 1 numbers"),
        (node("_operator.neg", [argument("a", {"as_sym_int": {"as_name": "x"}})], "z"),
         "'x' is no number"),
        (node("_operator.neg", [argument("a", {"as_sym_float": {"as_float": "1_0"}})], "z"),
         "'1_0' is not a number"),
        (unary("item.default", "x"), "item.default' is not allowed: how large its result is"),
        (unary("randn_like.default", "x"), "is not allowed: it is random"),
        (unary("relu_.default", "w"), "writes in place to a weight, buffer or input"),
        (unary("relu_.default", "x"), "writes in place to a weight, buffer or input"),
        (unary("relu.default", "nowhere"), "reads 'nowhere', which nothing before it defines"),
        (unary("relu.default", "y"), "reads 'y', which nothing before it defines"),
        (node("relu.default", [argument("self", tensor("x"))], "x"), "defines 'x' twice"),
        (node("relu.default", [argument("self", {"as_custom_obj": {}})], "z"), "one known kind"),
        (node("relu.default", [argument("self", {})], "z"), "one known kind of value, got 0"),
        (
            node("relu.default", [argument("self", {"as_int": 1, "as_bool": True})], "z"),
            "one known kind of value, got 2",
        ),
        (
            node("add.Tensor", [argument("self", tensor("x"), 2), argument("o", tensor("x"))], "z"),
            "argument 'o' of kind 1 is misplaced",
        ),
        (node("relu.default", [argument("a-b", tensor("x"), 2)], "z"), "'a-b' of kind 2"),
        (node("relu.default", [argument("self", {"as_float": "1e999"})], "z"), "is not a number"),
        (
            node("dropout.default", [argument("i", tensor("x")), argument("p", {"as_float": 0.1}),
                                     argument("train", {"as_bool": True})], "z"),
            "train must be False, got True. Otherwise it is random: call .eval()",
        ),
        (
            node("zeros.default", [argument("size", {"as_ints": [0] * 5000})], "z"),
            "list of 5000 items",
        ),
    ],
)  # fmt: skip
def test_nodes_that_are_refused(extra: dict[str, Any], said: str) -> None:
    assert said in refusal(archive(members(with_node(extra))))


def test_a_write_through_a_view_of_a_weight_is_refused() -> None:
    graph = good_graph()
    nodes_of(graph)[:0] = [
        node("view.default", [argument("self", tensor("w")),
                              argument("size", {"as_ints": [12]})], "flat"),
        node("detach.default", [argument("self", tensor("flat"))], "detached"),
        node("mul_.Scalar", [argument("self", tensor("detached")),
                             argument("other", {"as_int": 2})], "doubled"),
    ]  # fmt: skip
    assert "writes in place to a weight" in refusal(archive(members(graph)))


def test_a_write_to_a_view_of_a_result_is_allowed() -> None:
    graph = good_graph()
    nodes_of(graph)[:0] = [
        node("clone.default", [argument("self", tensor("x"))], "copy"),
        node("slice.Tensor", [argument("self", tensor("copy")), argument("dim", {"as_int": 1}),
                              argument("start", {"as_int": 1})], "part"),
        node("relu_.default", [argument("self", tensor("part"))], "done"),
    ]  # fmt: skip
    assert len(read(archive(members(graph))).plan.nodes) == 4


def test_the_written_argument_can_not_hide_behind_a_keyword() -> None:
    """Positions decide what is written; by keyword they could be in any order."""
    graph = good_graph()
    nodes_of(graph)[:0] = [
        node("clone.default", [argument("self", tensor("x"))], "copy"),
        node("add_.Tensor", [argument("other", tensor("copy"), 2),
                             argument("self", tensor("w"), 2)], "sum"),
    ]  # fmt: skip
    assert "writes in place to something that is no result" in refusal(archive(members(graph)))


def spoil_graph(edit: Callable[[dict[str, Any]], Any]) -> dict[str, Any]:
    graph = good_graph()
    edit(graph)
    return graph


def signature(graph: dict[str, Any]) -> Any:
    return graph["graph_module"]["signature"]


def values(graph: dict[str, Any]) -> Any:
    return graph["graph_module"]["graph"]["tensor_values"]


@pytest.mark.parametrize(
    ("edit", "said"),
    [
        (lambda g: g.update(schema_version={"major": 7, "minor": 1}), "expected 8.x, got 7.1"),
        (lambda g: g.update(schema_version={"major": 9, "minor": 0}), "expected 8.x, got 9.0"),
        (lambda g: g.pop("schema_version"), "missing required field `schema_version`"),
        (lambda g: nodes_of(g).clear(), "reads 'y', which nothing"),
        (lambda g: signature(g).update(output_specs=[]), "0 outputs: expected 1 to"),
        (lambda g: signature(g)["input_specs"].pop(), "reads 'x', which nothing"),
        (
            lambda g: signature(g)["input_specs"].append({"custom_obj": {}}),
            "graph input of kind custom_obj",
        ),
        (
            lambda g: signature(g)["input_specs"].append({"user_input": {"arg": {"as_int": 1}}}),
            "an input must be a tensor, got as_int",
        ),
        (
            lambda g: signature(g)["output_specs"].append({"buffer_mutation": {}}),
            "of kind buffer_mutation: a model must not change its weights",
        ),
        (lambda g: values(g).pop("x"), "tensor 'x' has no type and shape"),
        (lambda g: values(g).update(x=meta(archives.BATCH_EXPRESSION, 4, dtype=10)), "plain data"),
        (lambda g: values(g).update(x=meta(-1, 4)), "negative size"),
        (lambda g: values(g).update(x=meta(*[1] * 17)), "rank 17"),
        (lambda g: values(g).update(x=meta(2, 4)), "which is not the size of any input"),
        (lambda g: values(g).update(x=meta("Add(Integer(2), Symbol('s0'))", 4)), "['s0'], which"),
        (lambda g: values(g).update(x=meta("__import__('os')", 4)), "__import__ with 1 arguments"),
        (
            lambda g: g.update(range_constraints={"s0": {"min_val": 9, "max_val": 3}}),
            "no size between 9 and 3",
        ),
    ],
)
def test_graphs_that_are_wrong(edit: Callable[[dict[str, Any]], Any], said: str) -> None:
    assert said in refusal(archive(members(spoil_graph(edit))))


def test_sizes_without_a_range_get_the_limit() -> None:
    graph = spoil_graph(lambda g: g.update(range_constraints={}))
    symbols = read(archive(members(graph)), ReadLimits(dynamic_size_max=100)).plan.spec.symbols
    assert symbols == (Symbol("batch", 1, 100),)


DOUBLE = "Mul(Integer(2), Symbol('s0', positive=True, integer=True))"


@pytest.mark.parametrize(
    "double", [DOUBLE, DOUBLE.replace("Mul(Integer(2), ", "Mul(")[:-1] + ", Integer(2))"]
)
def test_an_input_that_must_be_a_multiple_is_known_by_its_own_size(double: str) -> None:
    def edit(graph: dict[str, Any]) -> None:
        values(graph).update(x=meta(double, 4))
        graph["range_constraints"] = {"s0": {"min_val": 3, "max_val": 10}}

    spec = read(archive(members(spoil_graph(edit)))).plan.spec
    (symbol,) = spec.symbols
    assert (symbol.minimum, symbol.maximum, symbol.multiple) == (6, 20, 2)
    assert spec.inputs[0].shape == ((symbol.name,), 4)
    assert spec.outputs[0].shape == ((symbol.name, 2, "//"), 3)


def test_a_multiple_beyond_the_largest_size_is_refused() -> None:
    edit = spoil_graph(lambda g: values(g).update(x=meta(DOUBLE.replace("2", str(1 << 40)), 4)))
    assert "has no size between" in refusal(archive(members(edit)))


def test_a_dimension_that_is_the_symbol_itself_needs_no_multiple() -> None:
    edit = spoil_graph(lambda g: values(g).update(x=meta(DOUBLE, archives.BATCH_EXPRESSION)))
    spec = read(archive(members(edit))).plan.spec
    (symbol,) = spec.symbols
    assert symbol.multiple == 1
    assert spec.inputs[0].shape == ((2, symbol.name, "*"), (symbol.name,))


@pytest.mark.parametrize(
    ("limits", "said"),
    [
        (ReadLimits(artifact_bytes_max=100), "(artifact_bytes_max) is 100"),
        (ReadLimits(entries_max=3), "archive of 8 files, the limit (entries_max) is 3"),
        (ReadLimits(graph_bytes_max=100), "expected at most 100"),
        (ReadLimits(config_bytes_max=10), "expected at most 10"),
        (ReadLimits(weights_bytes_max=64), "(weights_bytes_max) is 64"),
        (ReadLimits(weights_max=1), "more than 1 weights (weights_max)"),
        (ReadLimits(nodes_max=0), "more than 0 nodes (nodes_max)"),
        (ReadLimits(arguments_max=2), "3 arguments (arguments_max)"),
        (ReadLimits(tensors_max=0), "1 inputs: expected 1 to 0"),
        (ReadLimits(rank_max=1), "malformed shape"),
        (ReadLimits(symbols_max=0), "1 dynamic dimensions (symbols_max)"),
        (ReadLimits(expression_chars_max=8), "(expression_chars_max) is 8"),
    ],
)
def test_every_limit_is_enforced_and_named(limits: ReadLimits, said: str) -> None:
    read(archive(members()))  # within the default limits
    assert said in refusal(archive(members()), limits)


def test_a_member_can_not_claim_more_bytes_than_the_archive() -> None:
    data = bytearray(archive(members()).getvalue())
    entry = data.rindex(b"PK\x01\x02")  # the last directory entry: byteorder
    data[entry + 20 : entry + 28] = (1 << 31).to_bytes(4, "little") * 2
    assert "claims more bytes than the archive has" in refusal(io.BytesIO(bytes(data)))


def test_literals_and_kinds_of_arguments() -> None:
    """One call with every kind of literal that a plan can hold."""
    given = [
        argument("self", tensor("x")),
        argument("a", {"as_none": True}),
        argument("b", {"as_float": "-Infinity"}),
        argument("c", {"as_ints": [1, -2]}),
        argument("d", {"as_optional_tensors": [{"as_tensor": {"name": "x"}}, {"as_none": True}]}),
        argument("dtype", {"as_scalar_type": 6}, 2),
        argument("device", {"as_device": {"type": "cuda", "index": 3}}, 2),
        argument("memory_format", {"as_memory_format": 2}, 2),
        argument("layout", {"as_layout": 7}, 2),
        argument("flag", {"as_bool": False}, 2),
        argument("mode", {"as_string": "floor"}, 2),
    ]
    plan = read(archive(members(with_node(node("clone.default", given, "z"))))).plan
    call = plan.nodes[0]
    assert call.arguments == (
        plans.Slot(0),
        None,
        float("-inf"),
        plans.Many((1, -2)),
        plans.Many((plans.Slot(0), None)),
    )
    assert dict(call.keywords) == {
        "dtype": plans.Constant("dtype", "FP16"),
        "device": plans.Constant("device", ""),
        "memory_format": plans.Constant("memory_format", "channels_last"),
        "layout": plans.Constant("layout", "strided"),
        "flag": False,
        "mode": "floor",
    }
    assert call.results == (None,)
    assert plans.decode(plans.encode(plan)) == plan


def test_assertions_about_types_are_dropped() -> None:
    extra = node("_assert_tensor_metadata.default", [argument("a", tensor("x"))])
    assert len(read(archive(members(with_node(extra)))).plan.nodes) == 1


def test_the_file_is_not_closed() -> None:
    file = archive(members())
    read(file)
    assert not file.closed


def test_reading_needs_no_torch() -> None:
    import subprocess

    program = (
        "import sys, gpumuxd.models.pt2, gpumuxd.models.repository, gpumuxd.loader.main;"
        "sys.exit(any(name.split('.')[0] in ('torch', 'numpy', 'sympy', 'pickle') "
        "for name in sys.modules))"
    )
    assert subprocess.run([sys.executable, "-c", program], timeout=60).returncode == 0
