"""Guards: what torch.export found that sizes must fulfil beyond their ranges, `L['x'].size()[0] !=
5`. The graph is right for those sizes only: for others the module would have taken another way.

torch writes them as Python and compiles that. Here they are parsed with `ast`, which evaluates
nothing, into the postfix tuples of `spec.py`, over the sizes of the inputs that they name. One that
can't be parsed refuses the model: served where it does not hold, it would give wrong results.

Invariant: what comes out holds numbers, symbol names and the operators of `arithmetic.ARITY`.
"""

import ast
import re
from collections.abc import Iterable, Mapping, Sequence

import msgspec

from gpumuxd.errors import InvalidModel
from gpumuxd.models.call_tree import Path
from gpumuxd.models.limits import ReadLimits
from gpumuxd.models.spec import Condition, ModelSpec, Symbol, TensorSpec, evaluate, symbols_of

_Tokens = list[int | float | str]

_BINARY: Mapping[type[ast.operator], str] = {
    ast.Add: "+",
    ast.Sub: "-",
    ast.Mult: "*",
    ast.Div: "/",
    ast.FloorDiv: "//",
    ast.Mod: "%",
    ast.Pow: "**",
}
_COMPARISONS: Mapping[type[ast.cmpop], str] = {
    ast.Eq: "==",
    ast.NotEq: "!=",
    ast.Lt: "<",
    ast.LtE: "<=",
    ast.Gt: ">",
    ast.GtE: ">=",
}
_FUNCTIONS = {
    "math.floor": "floor",
    "math.ceil": "ceil",
    "math.trunc": "trunc",
    "torch.sym_float": "float",
    "torch._sym_sqrt": "sqrt",
}
"""Functions of one number."""

_FOLDED = {"max": "max", "min": "min"}
_SWAPPED = {"<": ">", "<=": ">=", ">": "<", ">=": "<=", "==": "==", "!=": "!="}


def with_guards(
    spec: ModelSpec,
    guards: Iterable[str],
    graph_names: Sequence[str],
    paths: Sequence[Path] | None,
    limits: ReadLimits,
) -> ModelSpec:
    """The spec, with the guards in it as narrower ranges or as conditions.

    A guard names an input by where it is in the arguments: `paths`, or failing that the name that
    torch makes of it for the graph. Both are in the order of the spec's inputs.
    """
    by_path = dict(zip(paths or (), spec.inputs, strict=False))
    reader = _Reader(by_path, dict(zip(graph_names, spec.inputs, strict=True)), limits)
    conditions: dict[Condition, None] = {}  # in order, each once
    for text in guards:
        condition = reader.condition(text)
        if not symbols_of(condition):
            if not _holds(condition):
                raise InvalidModel(f"the guard {_shortened(text)} holds at no size of the inputs")
        elif not _is_same_on_both_sides(condition):
            conditions[condition] = None
    narrowed = list(spec.symbols)
    rest = [condition for condition in conditions if not _narrow(narrowed, condition)]
    if sum(map(len, rest)) > limits.condition_tokens_max:
        raise InvalidModel(f"{len(rest)} guards on sizes are too many (condition_tokens_max)")
    return msgspec.structs.replace(spec, symbols=tuple(narrowed), conditions=tuple(rest))


class _Reader:
    def __init__(
        self,
        by_path: Mapping[Path, TensorSpec],
        by_graph_name: Mapping[str, TensorSpec],
        limits: ReadLimits,
    ) -> None:
        self._by_path = by_path
        self._by_graph_name = by_graph_name
        self._limits = limits

    def condition(self, text: str) -> Condition:
        if len(text) > self._limits.expression_chars_max:
            raise InvalidModel(f"a guard of {len(text)} characters (expression_chars_max)")
        try:
            tokens = self._tokens(ast.parse(text, mode="eval").body)
        except (SyntaxError, ValueError, LookupError, RecursionError, MemoryError) as error:
            raise InvalidModel(
                f"the guard {_shortened(text)} on sizes can't be checked by this daemon: export "
                "with `sizes` for which torch needs none"
            ) from error
        return tuple(tokens)

    def _tokens(self, node: ast.expr) -> _Tokens:
        """Raises LookupError or ValueError for a form that is not known."""
        tokens = self._call(node)
        if len(tokens) > self._limits.expression_tokens_max:
            raise ValueError("too many terms")
        return tokens

    def _call(self, node: ast.expr) -> _Tokens:
        match node:
            case ast.Constant(value=bool() | float() as value):
                return [value]
            case ast.Constant(value=int() as value) if value < 1 << 63:  # a sign is a unary minus
                return [value]
            case ast.BinOp(left=left, op=operator, right=right):
                return [*self._tokens(left), *self._tokens(right), _BINARY[type(operator)]]
            case ast.Compare(left=left, ops=[operator], comparators=[right]):
                return [*self._tokens(left), *self._tokens(right), _COMPARISONS[type(operator)]]
            case ast.BoolOp(op=operator, values=values):
                return self._folded(values, "and" if isinstance(operator, ast.And) else "or")
            case ast.UnaryOp(op=ast.USub(), operand=operand):
                return [*self._tokens(operand), "neg"]
            case ast.UnaryOp(op=ast.Not(), operand=operand):
                return [*self._tokens(operand), "not"]
            case ast.Call(func=ast.Name(id=name), args=[_, _, *_] as arguments, keywords=[]):
                return self._folded(arguments, _FOLDED[name])
            case ast.Call(
                func=ast.Attribute(value=ast.Name(id=module), attr=name), args=[value], keywords=[]
            ):
                return [*self._tokens(value), _FUNCTIONS[f"{module}.{name}"]]
            case ast.Subscript(
                value=ast.Call(func=ast.Attribute(value=source, attr="size"), args=[], keywords=[]),
                slice=ast.Constant(value=int() as dimension),
            ):
                size = self._tensor(_path(source)).shape[dimension]
                return [size] if isinstance(size, int) else list(size)
        raise ValueError(f"{type(node).__name__} means nothing here")

    def _folded(self, values: Sequence[ast.expr], operator: str) -> _Tokens:
        tokens = self._tokens(values[0])
        for value in values[1:]:
            tokens += [*self._tokens(value), operator]
        return tokens

    def _tensor(self, path: Path) -> TensorSpec:
        if path in self._by_path:
            return self._by_path[path]
        return self._by_graph_name[re.sub(r"[^a-z0-9]", "_", "_".join(path).lower())]


def _path(source: ast.expr) -> Path:
    """The steps of `L['feats'][0].image`."""
    match source:
        case ast.Name(id="L"):
            return ()
        case ast.Subscript(value=value, slice=ast.Constant(value=(str() | int()) as key)):
            return (*_path(value), str(key))
        case ast.Attribute(value=value, attr=key):
            return (*_path(value), key)
    raise ValueError("no input")


def _holds(condition: Condition) -> bool:
    try:
        return bool(evaluate(condition, {}))
    except InvalidModel:
        return False


def _is_same_on_both_sides(condition: Condition) -> bool:
    """As most guards are, once both sizes have one name."""
    half = len(condition) // 2
    return condition[-1] == "==" and condition[:half] == condition[half:-1]


def _narrow(symbols: list[Symbol], condition: Condition) -> bool:
    """Can the range of a symbol say this? Then it does."""
    match condition:
        case (str() as name, int() as bound, str() as operator) if operator in _SWAPPED:
            pass
        case (int() as bound, str() as name, str() as swapped) if swapped in _SWAPPED:
            operator = _SWAPPED[swapped]
        case _:
            return False
    position = next(i for i, symbol in enumerate(symbols) if symbol.name == name)
    symbol = symbols[position]
    low, high, step = symbol.minimum, symbol.maximum, symbol.multiple
    match operator:
        case "==":
            low, high = max(low, bound), min(high, bound)
        case "<" | "<=":
            high = min(high, bound - (operator == "<"))
        case ">" | ">=":
            low = max(low, bound + (operator == ">"))
        case "!=":
            low, high = low + step * (low == bound), high - step * (high == bound)
            if low < bound < high:
                return False
    low, high = -(-low // step) * step, high // step * step
    if low > high:
        raise InvalidModel(f"dynamic dimension {name!r} has no size that the guards allow")
    symbols[position] = Symbol(name, low, high, step)
    return True


def _shortened(text: str) -> str:
    return repr(text if len(text) <= 160 else text[:157] + "...")
