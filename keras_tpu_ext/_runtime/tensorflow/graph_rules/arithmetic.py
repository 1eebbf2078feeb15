"""Rules for operations on numbers: element by element, reductions, convolutions and products."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from keras_tpu_ext._runtime.common import batch_axis
from keras_tpu_ext._runtime.common.batch_axis import CONSTANT, Contraction, Value, first_mixed, mixed, rows
from keras_tpu_ext._runtime.tensorflow.graph_axis import Size, Step
from keras_tpu_ext._runtime.tensorflow.graph_rules.registry import RULES, Result, rule


def _words(text: str) -> list[str]:
    return text.split()


_UNARY = _words("""
Abs Acos Acosh Asin Asinh Atan Atanh Ceil Conj Cos Cosh Digamma Elu Erf Erfc Erfinv Exp Expm1 Floor Imag Inv Invert
IsFinite IsInf IsNan Lgamma Log Log1p LogicalNot Ndtri OnesLike Real Reciprocal Relu Relu6 Rint Round Rsqrt Selu
Sigmoid Sign Sin Sinh Softplus Softsign Sqrt Square Tan Tanh ZerosLike LeakyRelu ComplexAbs Angle CheckNumerics
Bucketize StringToNumber AsString StringLower StringUpper StringStrip StaticRegexReplace StringToHashBucketFast
StringToHashBucketStrong StringLength PreventGradient
""")
_BINARY = _words("""
Atan2 BitwiseAnd BitwiseOr BitwiseXor Complex Equal FloorDiv FloorMod Greater GreaterEqual LeftShift Less LessEqual
LogicalAnd LogicalOr Maximum Minimum Mod MulNoNan NextAfter NotEqual Pow RightShift SquaredDifference TruncateDiv
TruncateMod Xdivy Xlog1py Xlogy Igamma Igammac Zeta Polygamma ReluGrad Relu6Grad SigmoidGrad TanhGrad SqrtGrad
RsqrtGrad ReciprocalGrad InvGrad SoftplusGrad SoftsignGrad EluGrad SeluGrad LeakyReluGrad ClipByValue SelectV2
StringJoin RegexReplace Betainc
""")
# Of images or sequences, each entry of the first axis by itself; the other inputs are constant.
_OF_FIRST = _words("""
Conv2D Conv3D DepthwiseConv2dNative MaxPool MaxPool3D MaxPoolV2 AvgPool AvgPool3D ResizeBilinear
ResizeNearestNeighbor ResizeBicubic ResizeArea DepthToSpace SpaceToDepth ExtractImagePatches ExtractVolumePatches
Dilation2D LRN ScaleAndTranslate Conv
""")
_OF_LAST_AXES = {
    **dict.fromkeys(("Softmax", "LogSoftmax", "TopKV2", "TopK", "FFT", "IFFT", "RFFT", "IRFFT", "MatrixDiag"), 1),
    **dict.fromkeys(("MatrixDiagV3", "RGBToHSV", "HSVToRGB"), 1),
    **dict.fromkeys(("MatrixBandPart", "Cholesky", "MatrixInverse", "Qr", "Svd", "SelfAdjointEigV2", "FFT2D"), 2),
    **dict.fromkeys(("MatrixDeterminant", "LogMatrixDeterminant", "MatrixDiagPart", "MatrixDiagPartV3", "IFFT2D"), 2),
    **dict.fromkeys(("AdjustContrastv2", "AdjustHue", "AdjustSaturation", "FFT3D", "IFFT3D"), 3),
}


@rule(*_UNARY, *_BINARY)
def _elementwise(step: Step) -> Value:
    return fitting(step, batch_axis.elementwise(step.operands(), step.where))


def fitting(step: Step, value: Value) -> Value:
    """Return the value, unless a constant has as many entries as some batches have rows."""
    if value.kind != "rows" or step.output.shape.rank is None:
        return value
    return fitting_at(step, value, value.axis - step.output.shape.rank)


def fitting_at(step: Step, value: Value, place: int) -> Value:
    """Return the value, unless a constant has as many entries at a place of its shape as some batches have rows."""
    shapes = [tensor.shape for tensor, each in zip(step.inputs, step.values, strict=True) if each == CONSTANT]
    sizes = [shape[place] for shape in shapes if shape.rank is not None and -shape.rank <= place < shape.rank]
    return value if all(size in (None, 1) for size in sizes) else mixed(f"{step.where} fits one number of rows")


@rule("EnsureShape")
def _ensure_shape(step: Step) -> Value:
    value = step.values[0]
    if value.kind != "rows" or step.output.shape.rank is None or step.output.shape[value.axis] is None:
        return value
    return mixed(f"{step.where} fits one number of rows")


@rule("Neg", "StopGradient", "Snapshot", "AddN", "Sub")
def _add(step: Step) -> Value:
    operands = [each for place, each in enumerate(step.operands()) if not _is_zero(step, place)]
    return fitting(step, batch_axis.elementwise(operands, step.where, "add"))


def _is_zero(step: Step, place: int) -> bool:
    is_reduced = any(value.kind in ("sum", "mean", "size") for value in step.values)
    return is_reduced and step.values[place] == CONSTANT and step.is_zero(place)


@rule("Cast", "Identity", "PlaceholderWithDefault")
def _cast(step: Step) -> Value:
    sizes = step.known.sizes.get(step.inputs[0].ref())
    if sizes is not None:
        return step.keep_sizes(sizes)
    for known in (step.known.reads, step.known.sums, step.known.handles):
        if step.inputs[0].ref() in known:
            known[step.output.ref()] = known[step.inputs[0].ref()]
    is_linear = step.inputs[0].dtype == step.output.dtype or step.output.dtype.is_floating
    return batch_axis.elementwise(step.operands(), step.where, "add" if is_linear else None)


@rule("Bitcast")
def _bitcast(step: Step) -> Value:
    same = step.inputs[0].dtype.size == step.output.dtype.size
    return _elementwise(step) if same else first_mixed(step.values) or mixed(step.where, is_certain=False)


@rule("Add", "AddV2")
def _sum_of_two(step: Step) -> Value:
    for read, added in ((0, 1), (1, 0)):
        handle = step.known.reads.get(step.inputs[read].ref())
        if handle is not None and step.values[added].kind in ("sum", "size"):
            step.known.sums[step.output.ref()] = (handle, step.values[added])
    return _add(step)


@rule("Mul")
def _multiply(step: Step) -> Value:
    if any(value.kind == "size" for value in step.values):
        first, second = (step.sizes(place) for place in (0, 1))
        if first is not None and second is not None and len(first) == len(second) == 1:
            product = _times(first[0], second[0])
            if product is not None:
                return step.keep_sizes([product])
    return fitting(step, batch_axis.elementwise(step.operands(), step.where, "multiply"))


@rule("RealDiv", "Div", "DivNoNan")
def _divide(step: Step) -> Value:
    if step.values[1].kind == "size" and step.values[0] == CONSTANT and step.is_zero(0):
        return CONSTANT
    return fitting(step, batch_axis.elementwise(step.operands(), step.where, "divide"))


def _times(first: Any, second: Any) -> Any:
    if first is None or second is None or (isinstance(first, Size) and isinstance(second, Size)):
        return None
    if isinstance(second, Size):
        first, second = second, first
    return Size(first.per_row * second) if isinstance(first, Size) else first * second


@rule("Select")
def _select(step: Step) -> Value:
    if step.rank(0) == 1 and step.rank(1) > 1 and all(value in (rows(), CONSTANT) for value in step.values):
        return rows() if rows() in step.values else CONSTANT
    return _elementwise(step)


@rule("BiasAdd")
def _bias(step: Step) -> Value:
    value, is_first = step.values[0], step.attribute("data_format") == b"NCHW"
    if value.kind in ("sum", "size") or (
        value.kind == "rows" and value.axis == (1 if is_first else step.rank(0) - 1)
    ):
        return mixed(value.reason or step.where)
    return first_mixed(step.values) or (step.values[0] if step.values[1] == CONSTANT else mixed(step.where))


@rule("Sum", "Mean", "Max", "Min", "Prod", "All", "Any", "EuclideanNorm", "ArgMax", "ArgMin")
def _reduce(step: Step) -> Value:
    value = step.values[0]
    if value.kind == "size" and step.kind == "Prod":
        total: Any = 1
        for size in step.sizes(0) or [None]:
            total = _times(total, size)
        return mixed(value.reason, is_certain=False) if total is None else step.keep_sizes([total])
    if value.kind == "size":
        return mixed(value.reason, is_certain=False) if step.rank(0) else value
    if value.kind != "rows":
        return batch_axis.reduce(value, [], step.where, step.kind.lower())
    keeps = not step.kind.startswith("Arg") and step.attribute("keep_dims")
    return batch_axis.reduce(value, step.axes(1, step.rank(0)), step.where, step.kind.lower(), keeps_axes=keeps)


@rule("L2Loss")
def _reduce_all(step: Step) -> Value:
    return batch_axis.reduce(step.values[0], range(step.rank(0)), step.where, "sum")


@rule("Cumsum", "Cumprod", "ReverseV2")
def _along(step: Step) -> Value:
    return batch_axis.along(step.values[0], step.axes(1, step.rank(0)), step.where)


@rule("Roll")
def _roll(step: Step) -> Value:
    return batch_axis.along(step.values[0], step.axes(2, step.rank(0)), step.where)


@rule("RandomShuffle")
def _shuffle(step: Step) -> Value:
    return batch_axis.along(step.values[0], [0], step.where)


@rule(*_OF_LAST_AXES)
def _of_last_axes(step: Step) -> Value:
    bad = first_mixed(step.values)
    if bad is not None or all(value.kind == "constant" for value in step.values):
        return bad or CONSTANT
    axes = range(step.rank(0) - _OF_LAST_AXES[step.kind], step.rank(0))
    return batch_axis.along(step.values[0], axes, step.where)


@rule(*_OF_FIRST)
def _of_first(step: Step) -> Value:
    return first_axis(step, 0, [])


@rule("ImageProjectiveTransformV2", "ImageProjectiveTransformV3", "SparseSoftmaxCrossEntropyWithLogits")
def _of_first_with_others(step: Step) -> Value:
    return first_axis(step, 0, [1])


RULES["SoftmaxCrossEntropyWithLogits"] = RULES["InTopKV2"] = _of_first_with_others


@rule("Conv2DBackpropInput", "Conv3DBackpropInputV2", "DepthwiseConv2dNativeBackpropInput")
def _transposed_convolution(step: Step) -> Value:
    if step.values[0] == CONSTANT and step.values[2] != CONSTANT:
        return mixed(f"{step.where} fits one number of rows")
    return first_axis(step, 2, [])


@rule("MaxPoolWithArgmax")
def _pool_with_places(step: Step) -> Result:
    value = first_axis(step, 0, [])
    counts_rows = value.kind == "rows" and step.attribute("include_batch_in_index")
    return [value, mixed(f"{step.where} counts the rows") if counts_rows else value]


@rule("MaxPoolGrad", "AvgPoolGrad")
def _pooling_gradient(step: Step) -> Value:
    return first_axis(step, len(step.inputs) - 1, range(len(step.inputs) - 1))


def first_axis(step: Step, main: int, others: Sequence[int]) -> Value:
    """Return the value if each entry of the first axis of `main`, and of `others`, is worked on by itself."""
    bad = first_mixed(step.values)
    if bad is not None:
        return bad
    there = [(place, value) for place, value in enumerate(step.values) if value.kind != "constant"]
    if not there:
        return CONSTANT
    sizes = [step.inputs[place].shape[:1] for place in others if step.values[place] == CONSTANT]
    if any(size.rank and size[0] not in (None, 0, 1) for size in sizes if step.inputs[main].shape.rank is not None):
        return mixed(f"{step.where} fits one number of rows")
    if all(value.kind == "rows" and value.axis == 0 and place in (main, *others) for place, value in there):
        return step.values[main] if step.values[main].kind == "rows" else there[0][1]
    of_sizes = [place for place, value in there if value.kind == "size"]
    if step.values[main].kind == "rows" and step.values[main].axis == 0 and of_sizes == [0] != [main]:
        return step.values[main]  # of the shape of a transposed convolution
    return mixed(step.where)


@rule("FusedBatchNormV3", "FusedBatchNormV2", "FusedBatchNorm")
def _normalise(step: Step) -> Result:
    is_first = step.attribute("data_format") == b"NCHW"
    channel = 1 if is_first else step.rank(0) - 1
    of_channels = rows(0, step.values[0].per_row)
    if step.values[0] == rows(channel, of_channels.per_row) and set(step.values[1:]) <= {of_channels, CONSTANT}:
        shape = step.inputs[1].shape  # each channel by itself: so Keras 2 normalises layers
        is_same = of_channels in step.values or shape[0] in (None, 1)
        others = [of_channels] * (len(step.operation.outputs) - 1)
        return [step.values[0], *others] if is_same else mixed(f"{step.where} fits one number of rows")
    value = first_axis(step, 0, [])
    return mixed(step.where) if value.kind == "rows" and step.attribute("is_training") else value


@rule("SpaceToBatchND", "BatchToSpaceND")
def _blocks(step: Step) -> Value:
    """Follow blocks, which become entries of the first axis, not those of a row one after the other."""
    value = step.values[0]
    if value.kind != "rows":
        return value
    factor = math.prod(int(size) for size in step.static(1))
    if value.axis:
        return mixed(step.where)
    if step.kind == "SpaceToBatchND":
        return rows(0, -factor * value.per_row) if value.per_row > 0 else mixed(step.where, is_certain=False)
    return rows(0, -value.per_row // factor) if value.per_row < 0 else mixed(step.where)


@rule("MatMul", "BatchMatMulV2", "BatchMatMulV3", "BatchMatMul")
def _product(step: Step) -> Value:
    if all(value.kind == "constant" for value in step.values):
        return CONSTANT
    rank = max(step.rank(0), step.rank(1))
    prefix = "transpose_{}" if step.kind == "MatMul" else "adj_{}"
    names = ("a", "b") if step.kind == "MatMul" else ("x", "y")
    operands = []
    for place, name in enumerate(names):
        value, shift = step.values[place], rank - step.rank(place)
        shifted = rows(value.axis + shift, value.per_row) if value.kind == "rows" else value
        is_inner = bool(step.attribute(prefix.format(name))) == (place == 0)
        contracted = rank - 2 if is_inner else rank - 1
        operands.append(Contraction(shifted, rank, tuple(range(rank - 2)), (contracted,)))
    left, right = operands
    value = batch_axis.contract(left, right, step.where)
    return fitting(step, value) if value.kind == "rows" and value.axis < rank - 2 else value


@rule("Einsum")
def _einsum(step: Step) -> Value:
    bad = first_mixed(step.values)
    of_inputs, output = _labels(step)
    there = [
        (value, labels) for value, labels in zip(step.values, of_inputs, strict=True) if value.kind != "constant"
    ]
    if bad is not None or not there:
        return bad or CONSTANT
    if any(value.kind != "rows" for value, _ in there):
        reduced = [value for value, _ in there if value.kind != "rows"]
        return reduced[0] if len(there) == 1 else mixed(reduced[0].reason)
    places = {(labels[value.axis], value.per_row) for value, labels in there}
    if len(places) > 1:
        return mixed(f"{step.where} combines different rows")
    ((label, per_row),) = places
    for each, labels, tensor in zip(step.values, of_inputs, step.inputs, strict=True):
        if each == CONSTANT and label in labels and tensor.shape[labels.index(label)] not in (None, 1):
            return mixed(f"{step.where} fits one number of rows")
    if label in output:
        return rows(output.index(label), per_row)
    return Value("sum", reason=step.where) if len(there) == len(step.values) else mixed(step.where)


def _labels(step: Step) -> tuple[list[str], str]:
    inputs, output = step.attribute("equation").decode().replace(" ", "").split("->")
    wide = [step.rank(i) - len(part) + 3 for i, part in enumerate(inputs.split(",")) if "..." in part]
    labels = "0123456789"[: max(wide, default=0)]
    parts = []
    for place, part in enumerate(inputs.split(",")):
        count = step.rank(place) - len(part) + 3
        parts.append(part.replace("...", labels[len(labels) - count :] if count else ""))
    return parts, output.replace("...", labels)
