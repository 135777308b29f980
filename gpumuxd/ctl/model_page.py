"""The page of a model for people, from the plain values that `--json` prints.

Rows of a name and a value, a table of what was measured, and sentences. On a pipe every row and
every sentence is one line. It must not know the client.
"""

from collections.abc import Iterator
from typing import Any

from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from gpumuxd.ctl.tables import print_table, state_text
from gpumuxd.units import KIB, MIB, format_duration

HASH_SHOWN = 16
"""Characters of an artifact's hash; all with --json."""

_VERDICT_STYLE = {True: "green", False: "yellow", None: "yellow"}


def show_model(console: Console, model: Any) -> None:
    """Every version, newest first; what the manifest says once, where all versions agree."""
    policies = [version["policy"] for version in model["versions"]]
    is_shared = all(policy == policies[0] for policy in policies)
    console.print(Text(model["name"], "bold"))
    if is_shared:
        print_facts(console, _policy_rows(policies[0]))
    for version in model["versions"]:
        console.print()
        heading = f"version {version['version']}  " if version["version"] else ""
        console.print(Text.assemble((heading, "bold"), state_text(version["state"])))
        if version["reason"]:
            print_sentence(console, " ".join(version["reason"].split()))
        if not is_shared:
            print_facts(console, _policy_rows(version["policy"]))
        if version["loaded"] is not None:
            _show_loaded(console, model["name"], version["loaded"])


def _show_loaded(console: Console, name: str, loaded: Any) -> None:
    print_facts(console, _loaded_rows(name, loaded))
    console.print()
    _print_buckets(console, loaded)
    console.print()
    print_sentence(console, loaded["verdict"], _VERDICT_STYLE[loaded["is_preemptible"]])
    for sentence in filter(None, (loaded["advice"], *loaded["notes"])):
        print_sentence(console, sentence)


def _policy_rows(policy: Any) -> Iterator[tuple[str, str]]:
    if policy is None:
        return
    tenants, slo_ns = policy["tenants"], policy["slo_ns"]
    yield "tenants", "everyone" if tenants is None else ", ".join(tenants) or "none"
    yield "class", f"up to {policy['class_max']}"
    yield "SLO", "none" if slo_ns is None else format_duration(slo_ns)
    yield "versions", policy["versions"]
    if policy["device"] is not None:
        yield "placement", policy["device"]
    if policy["replicas"] not in ("", "1"):
        yield "replicas", policy["replicas"]


def _loaded_rows(name: str, loaded: Any) -> Iterator[tuple[str, str]]:
    yield "platform", f"{loaded['platform']}, artifact {loaded['artifact_hash'][:HASH_SHOWN]}"
    yield "device", loaded["device"]
    if len(loaded["replicas"]) > 1:
        yield "replicas", f"{', '.join(loaded['replicas'])}; what follows is of {loaded['device']}"
    for what in ("input", "output"):
        for tensor in loaded[f"{what}s"]:
            yield what, f"{tensor['name']}  {tensor['datatype']}[{', '.join(tensor['shape'])}]"
    for dimension in loaded["dimensions"]:
        yield "size", _range(dimension, loaded["batch_max"])
    if not loaded["dimensions"]:
        is_ours = loaded["platform"] == "pytorch_pt2"
        yield "size", f"all fixed{' (gpumuxd export lets the batch vary)' if is_ours else ''}"
    yield "parameters", _count(loaded["parameter_count"])
    weights, frame = _bytes(loaded["weights_bytes"]), _bytes(loaded["frame_bytes"])
    yield "memory", f"weights {weights}, one run {frame}"
    yield "groups", _groups(loaded)
    yield "bound", bound_text(name, loaded["bound"])


def _range(dimension: Any, batch_max: int) -> str:
    text = f"{dimension['name']} {dimension['minimum']} .. {dimension['maximum']}"
    if dimension["multiple"] > 1:
        text += f" in steps of {dimension['multiple']}"
    if dimension["is_batch"] and batch_max < dimension["maximum"]:
        text += f", at most {batch_max} in a request (batch_max in model.toml)"
    return text


def _groups(loaded: Any) -> str:
    measured = [each for each in _asked_buckets(loaded) if each["longest"] is not None]
    if not measured:
        return str(loaded["group_count"])
    worst = max(measured, key=lambda bucket: int(bucket["longest"]["device_ns"]))
    sizes = ", ".join(_sizes(loaded, worst))
    longest = worst["longest"]
    nodes, time = nodes_text(longest), format_duration(longest["device_ns"])
    return (
        f"{loaded['group_count']}, the longest at load is number {longest['group']} ({nodes}): "
        f"{time}{f' at {sizes}' if sizes else ''}"
    )


def bound_text(name: str, bound: Any) -> str:
    """A bound, and what gives it or why there is none."""
    match bound["origin"]:
        case "laxity":
            whose = bound["model"] or "another model"
            origin = f"what the SLO of {'this model' if whose == name else whose} leaves"
        case "slice_ms_max":
            origin = "slice_ms_max, no SLO leaves less"
        case "slicing":
            origin = "slicing = none"
        case "fixed":
            origin = "slicing has fixed sync points"
        case "order":
            origin = "order = fifo"
        case "least_delay":
            origin = "no model has an SLO that can be met, none is configured"
        case "slo":
            whose = bound["model"] or "another model"
            origin = f"its longest group takes more than the laxity of {whose}"
        case "unknown":
            return "not known at this moment"
        case stated:
            origin = f"stated, {stated}"
    time = "none" if bound["bound_ns"] is None else format_duration(bound["bound_ns"])
    return f"{time} ({origin})"


def _print_buckets(console: Console, loaded: Any) -> None:
    table = Table(box=None, pad_edge=False)
    for dimension in loaded["dimensions"]:
        table.add_column(dimension["name"], justify="right")
    for heading in ("run at load", "longest group"):
        table.add_column(heading, justify="right")
    table.add_column("")
    table.add_column("beyond bound")
    for bucket in _asked_buckets(loaded):
        longest = bucket["longest"]
        table.add_row(
            *map(str, bucket["sizes"]),
            format_duration(bucket["run_ns"]),
            "" if longest is None else format_duration(longest["device_ns"]),
            "" if longest is None else nodes_text(longest),
            _beyond(bucket, loaded["bound"]),
        )
    print_table(console, table, indent=2)


def _asked_buckets(loaded: Any) -> list[Any]:
    """Those that requests within batch_max can get, unless there is none of these."""
    return [each for each in loaded["buckets"] if each["is_allowed"]] or loaded["buckets"]


def _beyond(bucket: Any, bound: Any) -> str:
    """How many groups are longer than the bound."""
    if bound["bound_ns"] is None:
        return "?" if bound["origin"] == "unknown" else "-"
    return f"{bucket['beyond_count']}{'+' if bucket['has_more_beyond'] else ''}"


def _sizes(loaded: Any, bucket: Any) -> list[str]:
    """The sizes in which this bucket differs from the others, all of an only one."""
    buckets, names = _asked_buckets(loaded), [each["name"] for each in loaded["dimensions"]]
    return [
        f"{name} {size}"
        for index, (name, size) in enumerate(zip(names, bucket["sizes"], strict=True))
        if len(buckets) == 1 or len({each["sizes"][index] for each in buckets}) > 1
    ]


def nodes_text(group: Any) -> str:
    """Which nodes a group is made of, the last one included."""
    first, last = group["first_node"], group["end_node"] - 1
    return f"node {first}" if first == last else f"nodes {first} .. {last}"


def _count(count: int) -> str:
    for unit, name in ((10**9, "G"), (10**6, "M"), (10**3, "k")):
        if count >= unit:
            return f"{count / unit:.1f} {name} ({count:,})"
    return str(count)


def _bytes(size_bytes: int) -> str:
    if size_bytes < KIB:
        return f"{size_bytes} B"
    if size_bytes < MIB:
        return f"{size_bytes / KIB:.1f} KiB"
    return f"{size_bytes / MIB:.1f} MiB"


def print_facts(console: Console, rows: Iterator[tuple[str, str]]) -> None:
    table = Table(show_header=False, box=None, pad_edge=False)
    table.add_column(style="dim", no_wrap=True, min_width=10)
    table.add_column()
    for name, value in rows:
        table.add_row(Text(name), Text(value))
    if table.row_count:
        print_table(console, table, indent=2)


def print_sentence(console: Console, sentence: str, style: str = "") -> None:
    console.print(Padding.indent(Text(sentence, style), 2))
