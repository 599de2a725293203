"""The small language of the rules: Python expressions over config fields, read by an interpreter that can do no harm.

`evaluate("num_key_value_heads * head_dim", {"num_key_value_heads": 8, "head_dim": 128})` gives 1024. Only the operators
and functions listed here exist; numbers and lists are bounded, so that a hostile config can neither run code nor take
the machine's memory.
"""

import ast
import math
import operator
from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache
from typing import Any

from labutils.arithmetic.errors import ConfigError

MAX_NUMBER = 2**80
MAX_ITEMS = 20_000

_BINARY = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.Pow: lambda base, exponent: base ** _exponent(exponent),
}
_COMPARE = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.Is: operator.is_,
    ast.IsNot: operator.is_not,
    ast.In: lambda item, group: item in group,
    ast.NotIn: lambda item, group: item not in group,
}


def _range(*bounds: int) -> list[int]:
    numbers = range(*bounds)
    if len(numbers) > MAX_ITEMS:
        raise ConfigError(f"a list of {len(numbers):,} items is asked for; at most {MAX_ITEMS:,} are read")
    return list(numbers)


def _get(mapping: Any, key: Any, default: Any = None) -> Any:
    return mapping.get(key, default) if isinstance(mapping, dict) else default


_FUNCTIONS: dict[str, Callable] = {
    "min": min,
    "max": max,
    "len": len,
    "int": int,
    "bool": bool,
    "sum": sum,
    "list": list,
    "sorted": sorted,
    "ceil": math.ceil,
    "isqrt": math.isqrt,
    "lcm": math.lcm,
    "range": _range,
    "get": _get,
    "enumerate": lambda items: [list(pair) for pair in enumerate(items)],
    "isinstance_dict": lambda value: isinstance(value, dict),
    "isinstance_list": lambda value: isinstance(value, list),
    "isinstance_str": lambda value: isinstance(value, str),
    "set": lambda items: sorted(set(items)),
    "startswith": lambda text, start: str(text).startswith(start),
    "abs": abs,
}


@lru_cache(maxsize=8192)
def _parse(expression: str) -> ast.expr:
    return ast.parse(expression, mode="eval").body


def names(expression: str) -> set[str]:
    """Return the config fields that an expression reads (its own loop variables left out)."""
    tree = _parse(expression)
    loop = {
        name.id
        for node in ast.walk(tree)
        if isinstance(node, ast.comprehension)
        for name in ast.walk(node.target)
        if isinstance(name, ast.Name)
    }
    return {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)} - set(_FUNCTIONS) - loop


def evaluate(expression: str, fields: Mapping[str, Any]) -> Any:
    """Return the value of an expression over config fields.

    Raises ConfigError, naming the expression, when a field is missing or its type does not fit, a division is by zero,
    or a result is out of bounds.
    """
    try:
        return _value(_parse(expression), fields)
    except ConfigError as error:
        raise ConfigError(
            f"{error} (in the rule `{expression}`)" if "in the rule" not in str(error) else str(error)
        ) from None
    except (TypeError, ValueError, ZeroDivisionError, IndexError, KeyError, OverflowError, AttributeError) as error:
        values = ", ".join(f"{name} = {shown(fields[name])}" for name in sorted(names(expression)) if name in fields)
        raise ConfigError(
            f"the rule `{expression}` cannot be computed with {values or 'this config'}: {error}"
        ) from None
    except RecursionError:
        raise ConfigError(f"the rule `{expression}` is nested too deeply") from None


def shown(value: Any, limit: int = 60) -> str:
    """Return a short text of a config value for an error message."""
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) >= 10**40:
        return "an integer of more than 40 digits"
    text = repr(value) if not isinstance(value, (dict, list)) else f"a {type(value).__name__} of {len(value)}"
    return text if len(text) <= limit else text[: limit - 3] + "..."


def _bounded(value: Any) -> Any:
    if isinstance(value, (int, float)) and abs(value) > MAX_NUMBER:
        raise ConfigError("a number is larger than 2**80")
    if isinstance(value, (list, str)) and len(value) > MAX_ITEMS:
        raise ConfigError(f"a list of {len(value):,} items; at most {MAX_ITEMS:,} are read")
    return value


def _binary(node: ast.BinOp, fields: Mapping[str, Any]) -> Any:
    left, right = _value(node.left, fields), _value(node.right, fields)
    if isinstance(node.op, ast.Mult) and (isinstance(left, list) or isinstance(right, list)):
        items, times = (left, right) if isinstance(left, list) else (right, left)
        if not isinstance(times, int) or times * max(1, len(items)) > MAX_ITEMS:
            raise ConfigError(f"a list would be repeated {shown(times)} times; at most {MAX_ITEMS:,} items are read")
    elif isinstance(left, str) or isinstance(right, str):
        raise ConfigError("a text stands where a number is needed")
    return _bounded(_BINARY[type(node.op)](left, right))


def _exponent(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= 64:
        raise ConfigError(f"an exponent is {shown(value)}; it must be a whole number from 0 to 64")
    return value


def _comprehension(node: ast.ListComp | ast.DictComp, fields: Mapping[str, Any]) -> Iterator[dict]:
    """Yield the fields as each item that the loop keeps sees them: one dict, changed from item to item."""
    loop = node.generators[0]
    items = _value(loop.iter, fields)
    if not isinstance(items, list):
        raise ConfigError(f"{shown(items)} stands where a list is needed")
    inner = dict(fields)
    for item in items:
        if isinstance(loop.target, ast.Tuple):
            inner.update(zip((name.id for name in loop.target.elts), item, strict=True))
        else:
            inner[loop.target.id] = item
        if all(_value(condition, inner) for condition in loop.ifs):
            yield inner


def _index(node: ast.Subscript, fields: Mapping[str, Any]) -> Any:
    group = _value(node.value, fields)
    if isinstance(node.slice, ast.Slice):
        bounds = [part and _value(part, fields) for part in (node.slice.lower, node.slice.upper, node.slice.step)]
        return group[slice(*bounds)]
    return group[_value(node.slice, fields)]


def _name(node: ast.Name, fields: Mapping[str, Any]) -> Any:
    try:
        return fields[node.id]
    except KeyError:
        raise ConfigError(f"the config does not say {node.id}") from None


def _truth(node: ast.BoolOp, fields: Mapping[str, Any]) -> Any:
    for part in node.values:
        value = _value(part, fields)
        if bool(value) == isinstance(node.op, ast.Or):
            return value
    return value


def _compare(node: ast.Compare, fields: Mapping[str, Any]) -> bool:
    left = _value(node.left, fields)
    for comparison, part in zip(node.ops, node.comparators, strict=True):
        right = _value(part, fields)
        if not _COMPARE[type(comparison)](left, right):
            return False
        left = right
    return True


def _call(node: ast.Call, fields: Mapping[str, Any]) -> Any:
    return _bounded(_FUNCTIONS[node.func.id](*(_value(argument, fields) for argument in node.args)))


_NODES: dict[type, Callable[[Any, Mapping[str, Any]], Any]] = {
    ast.Constant: lambda node, fields: node.value,
    ast.Name: _name,
    ast.BinOp: _binary,
    ast.BoolOp: _truth,
    ast.Compare: _compare,
    ast.Call: _call,
    ast.Subscript: _index,
    ast.IfExp: lambda node, fields: _value(node.body if _value(node.test, fields) else node.orelse, fields),
    ast.UnaryOp: lambda node, fields: (
        not _value(node.operand, fields) if isinstance(node.op, ast.Not) else -_value(node.operand, fields)
    ),
    ast.List: lambda node, fields: [_value(item, fields) for item in node.elts],
    ast.Tuple: lambda node, fields: [_value(item, fields) for item in node.elts],
    ast.Dict: lambda node, fields: {
        _value(key, fields): _value(value, fields) for key, value in zip(node.keys, node.values, strict=True)
    },
    ast.ListComp: lambda node, fields: [_value(node.elt, inner) for inner in _comprehension(node, fields)],
    ast.DictComp: lambda node, fields: {
        _value(node.key, inner): _value(node.value, inner) for inner in _comprehension(node, fields)
    },
}


def _value(node: ast.expr, fields: Mapping[str, Any]) -> Any:
    reader = _NODES.get(type(node))
    if reader is None:
        raise ConfigError(f"the rules do not know {type(node).__name__}")
    return reader(node, fields)
