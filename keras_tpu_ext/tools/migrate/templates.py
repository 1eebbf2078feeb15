"""Writes a call in another way, as a row of a table says; the row's language is explained in tables/tensorflow.py."""

from __future__ import annotations

import dataclasses
import functools
import re
from collections.abc import Mapping

import libcst as cst
import libcst.matchers as m

_ATOMIC = (cst.Name, cst.Attribute, cst.Call, cst.Subscript, cst.BaseNumber, cst.BaseString, cst.List, cst.Dict)
_BUILTIN = ("len", "tuple")
NO_SPACE = cst.AssignEqual(cst.SimpleWhitespace(""), cst.SimpleWhitespace(""))


@dataclasses.dataclass(frozen=True)
class Form:
    """One way to write a call."""

    parameters: tuple[str, ...]  # of the old function, in its order
    code: str  # the new expression
    when: tuple[tuple[str, str], ...] = ()  # parameters and the code that they must have

    @property
    def expression(self) -> cst.BaseExpression:
        """The new expression, with parameters as names."""
        return cst.parse_expression(self.code)

    @property
    def slots(self) -> re.Pattern[str]:
        """What finds parameters in the new expression, with what makes them optional: `, axis=axis or 0`."""
        names = "|".join({*self.parameters} - {"-"})
        return re.compile(
            rf"""(?P<comma>,\ )?(?P<keyword>\b\w+=)?(?<![\w."])(?P<name>{names})(?![\w("]|=[^=])
            (\ or\ (?P<default>[-\w."]+(\(\))?))?""",
            re.VERBOSE,
        )


def render(row: str, call: cst.Call) -> cst.BaseExpression | None:
    """Return what `row` makes of a call; `None` if it has no form for it."""
    if row.startswith("="):
        return call.with_changes(func=cst.parse_expression(f"keras.ops.{row[1:]}"))
    for form in _forms(row):
        given = _bind(form, call)
        if given is not None:
            return _renamed(form, call) or _filled(form, given)
    return None


@functools.cache
def _forms(row: str) -> tuple[Form, ...]:
    first, *others = (part.strip() for part in re.split(r"(?:^| )\| ", row))
    forms: list[Form] = []
    order, _, code = first.rpartition("->")
    parameters = tuple(order.split()) or _parameters_of(code)
    if code:
        forms.append(Form(parameters, _qualified(code)))
    for other in others:
        when, _, code = other.partition(": ")
        pairs = [pair.partition("=") for pair in when.split()]
        names = parameters or _parameters_of(code)
        more = tuple(name for name, _, _ in pairs if name not in names)
        forms.append(Form((*names, *more), _qualified(code), tuple((name, value) for name, _, value in pairs)))
    return tuple(forms)


def _parameters_of(code: str) -> tuple[str, ...]:
    """Return the names in an expression that are neither functions, keywords nor attributes, in their order."""
    names = re.findall(r"(?<![\w.\"])([a-z]\w*)(?![\w(\".]|\s*=[^=])|(?<![\w.\"])([a-z]\w*)(?=\.shape)", code)
    found = [one or other for one, other in names]
    return tuple(dict.fromkeys(name for name in found if name not in ("or", "if", "else", "keras")))


def _qualified(code: str) -> str:
    """Return an expression whose functions without a module are those of `keras.ops`."""

    def qualify(found: re.Match[str]) -> str:
        return found[0] if found[1] in _BUILTIN else f"keras.ops.{found[0]}"

    return re.sub(r"(?<![\w.])([a-z]\w*)\(", qualify, code.strip())


def _bind(form: Form, call: cst.Call) -> dict[str, cst.BaseExpression] | None:
    """Return the values of the parameters; `None` if this form does not fit the call."""
    given: dict[str, cst.BaseExpression] = {}
    for place, arg in enumerate(call.args):
        if arg.star or (arg.keyword is None and place >= len(form.parameters)):
            return None
        name = form.parameters[place] if arg.keyword is None else arg.keyword.value
        if name == "name":
            continue
        if name not in form.parameters or name == "-":
            return None
        if not m.matches(arg.value, m.Name("None")):
            given[name] = arg.value
    for name, code in form.when:
        if name not in given or not _is_value(given[name], code):
            return None
        if code not in ("INT", "ANY"):
            del given[name]
    slots = [*form.slots.finditer(form.code)]
    required = {slot["name"] for slot in slots if not (slot["keyword"] or slot["default"])}
    return given if required <= given.keys() <= {slot["name"] for slot in slots} else None


def _is_value(value: cst.BaseExpression, code: str) -> bool:
    if code == "INT":
        return isinstance(value, cst.Integer)
    if code == "ANY":
        return not isinstance(value, (cst.List, cst.Tuple))
    return _code_of(value).replace("'", '"') == code


def _code_of(value: cst.BaseExpression) -> str:
    return cst.Module([]).code_for_node(value)


def _renamed(form: Form, call: cst.Call) -> cst.Call | None:
    """Return the call with another function and other keywords, if that is all; so comments in it stay."""
    expression = form.expression
    if not isinstance(expression, cst.Call) or form.when:
        return None
    names = {arg.value.value: arg.keyword for arg in expression.args if isinstance(arg.value, cst.Name)}
    if (
        not names.keys() <= {*form.parameters}
        or len(names) != len(expression.args)
        or any(m.matches(arg.value, m.Name("None")) for arg in call.args)
    ):
        return None
    positional = [name for name, keyword in names.items() if keyword is None]
    args = []
    for place, arg in enumerate(call.args):
        name = form.parameters[place] if arg.keyword is None else arg.keyword.value
        keyword = names.get(name)
        if name not in names or (keyword is None and positional[place : place + 1] != [name]):
            return None
        args.append(with_keyword(arg, keyword))
    return call.with_changes(func=expression.func, args=args)


def with_keyword(arg: cst.Arg, keyword: cst.Name | None) -> cst.Arg:
    """Return an argument with another keyword, or with none."""
    if keyword is None:
        return arg.with_changes(keyword=None, equal=cst.MaybeSentinel.DEFAULT)
    return arg.with_changes(keyword=keyword, equal=arg.equal if arg.keyword is not None else NO_SPACE)


def _filled(form: Form, given: Mapping[str, cst.BaseExpression]) -> cst.BaseExpression:
    """Return the new expression with values in place of parameters."""

    def fill(slot: re.Match[str]) -> str:
        before = (slot["comma"] or "") + (slot["keyword"] or "")
        value = given.get(slot["name"])
        if value is None:
            return before + slot["default"] if slot["default"] else ""
        code = _code_of(value)
        is_argument = (before or form.code[slot.start() - 1] == "(") and form.code[slot.end()] in ",)"
        return before + (code if is_argument or isinstance(value, _ATOMIC) or value.lpar else f"({code})")

    return cst.parse_expression(form.slots.sub(fill, form.code))


def function_of(row: str) -> str:
    """Return the function that takes the place of another one, where that one is given as a value."""
    first = row.split(" | ")[0].rpartition("->")[2].strip()
    found = re.match(r"=?([\w.]+)", first)
    name = found[1] if found else ""
    return name if "." in name or not name else f"keras.ops.{name}"
