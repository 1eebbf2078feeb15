"""Find out, from its graph, whether code works on each row of a batch by itself: replicas can then share the batch.

The code is traced once with an unknown number of rows, and nothing is computed; see `graph_axis.py`. What cannot be
traced or followed is not separable.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import tensorflow as tf

from keras_tpu_ext._runtime.common.batch_axis import CONSTANT, Value, rows
from keras_tpu_ext._runtime.common.missing_names import private
from keras_tpu_ext._runtime.common.types import Nest, Variable
from keras_tpu_ext._runtime.tensorflow.graph_axis import Assignment, Known, Step, of_whole_batch
from keras_tpu_ext._runtime.tensorflow.graph_rules import Walk
from keras_tpu_ext._runtime.tensorflow.replicas import is_per_replica, native

_save_context: Any = private("tensorflow.python.saved_model.save_context:save_context")
_UNKNOWN_SIZE = 32  # of an axis, other than that of the rows, whose size only the data know


@dataclass(frozen=True)
class Separability:
    """Whether code works on each row of a batch by itself."""

    reason: str = ""  # why it does not, or why that is not known
    is_certain: bool = True
    # Ids of the handles of variables whose same rows are looked up for every batch.
    once: frozenset[int] = frozenset()
    # The input over whose rows an `add_loss` term is a mean, by the position of the term.
    mean_of: Mapping[int, int] = field(default_factory=dict)

    @property
    def is_row_by_row(self) -> bool:
        """Whether it does."""
        return not self.reason


class UntraceableError(Exception):
    """Code cannot be traced with an unknown number of rows."""


class _OneReplica(tf.distribute.ReplicaContext):
    """A replica whose sums over all replicas are marked as such in the graph."""

    def all_reduce(self, reduce_op: object, value: Nest, options: object = None) -> Nest:
        return tf.nest.map_structure(of_whole_batch, value)

    def all_gather(self, value: Nest, axis: object, options: object = None) -> Nest:
        return tf.nest.map_structure(of_whole_batch, value)


def of_function(function: Callable[..., Any], specs: Sequence[Nest]) -> Separability:
    """Return whether what `function` returns for a row, given tensors like `specs`, depends on that row alone."""
    return of_model(lambda *args: (function(*args), []), specs, [])


def of_model(
    function: Callable[..., tuple[Nest, Sequence[tf.Tensor]]], specs: Sequence[Nest], variables: Iterable[Variable]
) -> Separability:
    """Return whether a forward pass works row by row, with `add_loss` terms that are means, and learns nothing.

    To those of its `variables` that are sums over replicas it may add sums over the rows.
    """
    losses: list[tf.Tensor] = []
    mean_of: dict[int, int] = {}

    def results(*args: Any) -> list[tf.Tensor]:
        outputs, found = function(*args)
        losses.extend(tf.convert_to_tensor(loss) for loss in found)
        mean_of.update((term, _first_input_of(loss, args)) for term, loss in enumerate(losses))
        return [leaf for leaf in tf.nest.flatten(outputs) if leaf is not None] + losses

    try:
        values, walk, _ = _trace(results, specs, variables)
    except UntraceableError as error:
        return _untraceable(error)
    count = len(values) - len(losses)
    problems = [_problem(value, "") for value in values[:count]]
    problems += [_problem_of_loss(value, loss.shape.rank) for value, loss in zip(values[count:], losses, strict=True)]
    problems += _problems_of_variables(walk.assignments, variables)
    once, of_rows = (
        {id(h) for h, indices in walk.lookups if (indices == CONSTANT) == same} for same in (True, False)
    )
    if once & of_rows:
        problems.append(Separability("a table is looked up for each row, and once for the batch"))
    return _worst(problems) or Separability(once=frozenset(once), mean_of=mean_of)


def _first_input_of(tensor: tf.Tensor, inputs: Nest) -> int:
    """Return the position of the first of the `inputs` with rows that `tensor` is computed from; 0 if from none."""
    found = {tensor.op}
    for operation in reversed(tensor.graph.get_operations()):
        if operation in found:
            found.update(each.op for each in operation.inputs)
    leaves = [leaf for leaf in tf.nest.flatten(inputs) if leaf is not None and leaf.shape.rank != 0]
    return next((index for index, leaf in enumerate(leaves) if leaf.op in found), 0)


def of_step(step: Callable[[Nest], Nest], data: Nest, variables: Iterable[Variable]) -> Separability:
    """Return whether all that a user's own step assigns is the same on every replica, or a sum over the rows."""
    try:
        walk = _effects(step, [data])
    except UntraceableError as error:
        return _untraceable(error)
    return _worst(_problems_of_variables(walk.assignments, variables, is_step=True)) or Separability()


def of_loss(
    step: Callable[[Nest, Callable[[Nest, Nest], None]], Any], specs: Nest, *, may_look_up: bool
) -> Separability:
    """Return whether a loss reads no other results of a forward pass than it may, and all outputs have rows.

    `step`, a forward pass, then metrics and the loss, calls its second argument before each of these: first with the
    outputs and with all that they may read.
    """
    marks: list[Any] = []

    def mark(outputs: Nest, may_read: Nest) -> None:
        graph = tf.compat.v1.get_default_graph()
        refs = [{leaf.ref() for leaf in tf.nest.flatten(nest) if tf.is_tensor(leaf)} for nest in (outputs, may_read)]
        marks.append((graph, len(graph.get_operations()), *refs))

    looks_up = Separability("its compute_loss looks up a table, or may do so", is_certain=False)
    try:
        _, _, known = _trace(lambda data: (step(data, mark), None)[1], [specs])
    except UntraceableError:
        return Separability() if may_look_up else looks_up  # it is given the whole batch, whatever it does
    (graph, count, outputs, may_read), (_, of_loss, _, _) = marks
    if any(known.values.get(ref, CONSTANT) == CONSTANT for ref in outputs):
        return Separability("an output that its loss may read has no rows")
    operations = graph.get_operations()
    before = set(operations[:count])
    for tensor in (each for operation in operations[count:] for each in operation.inputs):
        if tensor.op in before and tensor.ref() not in may_read and known.value(tensor) != CONSTANT:
            return Separability(f"its loss reads {Step(tensor.op, known, Walk()).where}, which is no output")
    walk, constant = Walk(), Known({})
    constant.handles.update(known.handles)
    walk.through(graph, constant, of_loss)
    return looks_up if walk.lookups and not may_look_up else Separability()


def keeps_sums(update: Callable[..., Any], specs: Sequence[Nest], variables: Iterable[Variable]) -> bool:
    """Return whether an update of a metric's `variables` adds to each a sum over the rows, and nothing else."""
    try:
        walk = _effects(update, specs, variables)
    except UntraceableError:
        return False
    summed = _handles_of_sums(variables)
    return all(_adds_sum(assignment, summed) for assignment in walk.assignments)


def _effects(function: Callable[..., Any], specs: Sequence[Nest], variables: Iterable[Variable] = ()) -> Walk:
    """Return the walk of a function whose results do not matter."""
    return _trace(lambda *args: (function(*args), None)[1], specs, variables)[1]


def _untraceable(error: UntraceableError) -> Separability:
    return Separability(f"its graph cannot be made with an unknown number of rows: {error}", is_certain=False)


def _worst(problems: Sequence[Separability | None]) -> Separability | None:
    found = [problem for problem in problems if problem is not None]
    return next((problem for problem in found if problem.is_certain), found[0] if found else None)


def _adds_sum(assignment: Assignment, summed: Collection[int]) -> bool:
    return assignment.adds and assignment.value.kind in ("sum", "size") and id(assignment.handle) in summed


def _problems_of_variables(
    assignments: Sequence[Assignment], variables: Iterable[Variable], *, is_step: bool = False
) -> list[Separability | None]:
    """Return what is wrong with each assignment; a step may add to a sum what it has made of the whole batch.

    Every replica then adds the same, such as a loss and one batch, and what is read is their quotient.
    """
    summed = _handles_of_sums(variables)
    others = [assignment for assignment in assignments if not _adds_sum(assignment, summed)]
    return [_problem_of_variable(each, is_sum=not is_step and id(each.handle) in summed) for each in others]


def _problem_of_variable(assignment: Assignment, *, is_sum: bool) -> Separability | None:
    if assignment.value.kind == "rows":
        return Separability("a variable is assigned rows of the batch")
    if is_sum and assignment.value == CONSTANT:
        return Separability("a sum over the replicas is assigned the same on each")
    return _problem(assignment.value, ", assigned to a variable")


def _problem(value: Value, what: str, also: str = "") -> Separability | None:
    if value == CONSTANT or value.kind == also or (value.kind == "rows" and value.axis == 0 and value.per_row > 0):
        return None
    if value.kind == "rows" and value.per_row < 0:
        return Separability(f"its rows are in another order{what}")
    reason = value.reason or "the rows of a result are not along its first axis"
    return Separability(f"{reason}{what}", is_certain=value.is_certain)


def _problem_of_loss(value: Value, rank: int | None) -> Separability | None:
    if value == CONSTANT and rank != 0:
        return Separability("an array that is the same for every batch, and not its sum, given to add_loss")
    return _problem(value, ", given to add_loss", "mean" if rank == 0 else "")


def _trace(
    function: Callable[..., Any], specs: Sequence[Nest], variables: Iterable[Variable] = ()
) -> tuple[list[Value], Walk, Known]:
    """Return the values of the results of `function`, the walk, and what is known of the graph of one replica."""
    graph = tf.__internal__.FuncGraph("kte_separability")
    strategy, known = tf.distribute.get_strategy(), Known({})
    placeholder = functools.partial(_placeholder, known=known)
    try:
        with (
            graph.as_default(),
            _OneReplica(strategy, 0),
            _save_context(tf.saved_model.SaveOptions()),
            tf.variable_creator_scope(_outside),
        ):
            results = function(*(tf.nest.map_structure(placeholder, spec) for spec in specs))
            tensors = [tf.convert_to_tensor(leaf) for leaf in tf.nest.flatten(results) if leaf is not None]
    except Exception as error:  # of the user's code, whatever it is
        raise UntraceableError(_cause(error)) from error
    known.handles.update({inner.ref(): outer for outer, inner in graph.captures if inner.dtype == tf.resource})
    walk = Walk(_handles_of_sums(variables))
    walk.through(graph, known)
    return [known.value(tensor) for tensor in tensors], walk, known


def _outside(next_creator: Callable[..., tf.Variable], **options: Any) -> tf.Variable:
    """Create a variable as the code does when it first runs, for good."""
    if tf.executing_eagerly():  # graphs share their creators
        return next_creator(**options)
    with tf.init_scope():
        return tf.Variable(**options)


def _cause(error: Exception) -> str:
    """Return the line of an error that says what it is about: Keras and AutoGraph tell first where it occurred."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    raised = [line for line in lines if re.match(r"\w+Error: ", line)]
    others = [line for line in lines if not line.startswith(("Exception encountered", "in user code:"))]
    return [*raised, *others, type(error).__name__][0]


def _placeholder(spec: Any, known: Known) -> tf.Tensor | None:
    if spec is None:
        return None
    if isinstance(spec, (tf.SparseTensor, tf.RaggedTensor, tf.SparseTensorSpec, tf.RaggedTensorSpec)):
        raise UntraceableError("sparse and ragged tensors are not followed")
    shape = tf.TensorShape(spec.shape)
    if shape.rank is None:
        raise UntraceableError("the rank of an input is not known")
    sizes = [_UNKNOWN_SIZE if size is None else size for size in shape[1:]]
    tensor = tf.compat.v1.placeholder(spec.dtype, [None, *sizes] if shape.rank else [])
    known.values[tensor.ref()] = rows() if shape.rank else CONSTANT
    return tensor


def handle_of(variable: Variable) -> int:
    """Return the id of the resource tensor of `variable`, on the first replica."""
    own = native(variable)
    return id(getattr(own, "_primary", own).handle)


def _handles_of_sums(variables: Iterable[Variable]) -> set[int]:
    """Return the handles of those variables that are sums over replicas when they are read."""
    found = [each for each in variables if is_per_replica(each)]
    return {handle_of(each) for each in found if native(each).aggregation == tf.VariableAggregation.SUM}
