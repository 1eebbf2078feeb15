"""Rules for operations on numbers: element by element, reductions, convolutions and products."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from keras_tpu_ext._runtime.common import batch_axis
from keras_tpu_ext._runtime.common.batch_axis import CONSTANT, Contraction, Linear, Value, mixed, rows
from keras_tpu_ext._runtime.tensorflow.graph_axis import Result, Size, Step, rule


def _words(text: str) -> list[str]:
    return text.split()


_UNARY = _words("""
Abs Acos Acosh Asin Asinh Atan Atanh Ceil Conj Cos Cosh Digamma Elu Erf Erfc Erfinv Exp Expm1 Floor Imag Inv Invert
IsFinite IsInf IsNan Lgamma Log Log1p LogicalNot Ndtri OnesLike Real Reciprocal Relu Relu6 Rint Round Rsqrt Selu
Sigmoid Sign Sin Sinh Softplus Softsign Sqrt Square Tan Tanh ZerosLike LeakyRelu ComplexAbs Angle CheckNumerics
Bucketize StringToNumber AsString StringLower StringUpper StringStrip StaticRegexReplace StringToHashBucketFast
StringToHashBucketStrong StringLength PreventGradient Bitcast
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
Dilation2D LRN ScaleAndTranslate Conv Multinomial StatelessMultinomial
""")
# Which input has entries of the first axis that are worked on by themselves, and which others they fit.
_FIRST_AXIS: dict[str, tuple[int, tuple[int, ...]]] = {
    **dict.fromkeys(_OF_FIRST, (0, ())),
    **dict.fromkeys(("ImageProjectiveTransformV2", "ImageProjectiveTransformV3", "InTopKV2"), (0, (1,))),
    **dict.fromkeys(("SoftmaxCrossEntropyWithLogits", "SparseSoftmaxCrossEntropyWithLogits"), (0, (1,))),
    **dict.fromkeys(("Conv2DBackpropInput", "Conv3DBackpropInputV2", "DepthwiseConv2dNativeBackpropInput"), (2, ())),
    "AvgPoolGrad": (1, (0,)),
    "MaxPoolGrad": (2, (0, 1)),
}


def _last(count: int) -> Callable[[Step], Sequence[int]]:
    return lambda step: range(step.rank(0) - count, step.rank(0))


# Along which axes entries are combined, in the same shape.
_ALONG: dict[str, Callable[[Step], Sequence[int]]] = {
    **dict.fromkeys(("Cumsum", "Cumprod", "ReverseV2"), lambda step: step.axes(1)),
    "Roll": lambda step: step.axes(2),
    "RandomShuffle": lambda step: [0],
    **dict.fromkeys(
        _words("Softmax LogSoftmax TopKV2 TopK FFT IFFT RFFT IRFFT MatrixDiag MatrixDiagV3 RGBToHSV HSVToRGB"),
        _last(1),
    ),
    **dict.fromkeys(_words("MatrixBandPart Cholesky MatrixInverse Qr Svd SelfAdjointEigV2 FFT2D IFFT2D"), _last(2)),
    **dict.fromkeys(_words("MatrixDeterminant LogMatrixDeterminant MatrixDiagPart MatrixDiagPartV3"), _last(2)),
    **dict.fromkeys(_words("AdjustContrastv2 AdjustHue AdjustSaturation FFT3D IFFT3D"), _last(3)),
}


@rule(*_UNARY, *_BINARY)
def elementwise(step: Step, how: Linear | None = None) -> Value:
    """Return the value of an element-wise operation, unless a constant has as many entries as some batches rows."""
    operands = step.operands()
    if how == "add" and any(value.kind in ("sum", "mean", "size") for value in step.values):
        operands = [operand for i, operand in enumerate(operands) if not step.is_zero(i)]
    value = batch_axis.elementwise(operands, step.where, how)
    if value.kind != "rows" or step.output.shape.rank is None:
        return value
    return fitting(step, value, value.axis - step.output.shape.rank)


def fitting(step: Step, value: Value, axis: int) -> Value:
    """Return the value, unless a constant has as many entries along an axis as some batches have rows."""
    shapes = [tensor.shape for tensor, each in zip(step.inputs, step.values, strict=True) if each == CONSTANT]
    sizes = [shape[axis] for shape in shapes if shape.rank is not None and -shape.rank <= axis < shape.rank]
    return value if all(size in (None, 1) for size in sizes) else step.of_one_number()


@rule("EnsureShape")
def _ensure_shape(step: Step) -> Value:
    value, shape = step.values[0], step.output.shape
    is_open = value.kind != "rows" or shape.rank is None or shape[value.axis] is None
    return value if is_open else step.of_one_number()


@rule("Neg", "StopGradient", "Snapshot", "AddN", "Sub", "Add", "AddV2")
def _add(step: Step) -> Value:
    if step.kind in ("Add", "AddV2"):
        for read, added in ((0, 1), (1, 0)):
            handle = step.known.handles.get(step.inputs[read].ref())
            if handle is not None and step.values[added].kind in ("sum", "size"):
                step.known.sums[step.output.ref()] = (handle, step.values[added])
    return elementwise(step, "add")


@rule("Cast", "Identity", "PlaceholderWithDefault")
def _cast(step: Step) -> Value:
    sizes = step.known.sizes.get(step.inputs[0].ref())
    if sizes is not None:
        return step.keep_sizes(sizes)
    for known in (step.known.handles, step.known.sums):
        if step.inputs[0].ref() in known:
            known[step.output.ref()] = known[step.inputs[0].ref()]
    is_linear = step.inputs[0].dtype == step.output.dtype or step.output.dtype.is_floating
    return batch_axis.elementwise(step.operands(), step.where, "add" if is_linear else None)


@rule("Mul")
def _multiply(step: Step) -> Value:
    first, second = (step.sizes(index) or () for index in (0, 1))
    if any(value.kind == "size" for value in step.values) and len(first) == len(second) == 1:
        size = product_of([*first, *second])
        if size is not None:
            return step.keep_sizes([size])
    return elementwise(step, "multiply")


def product_of(sizes: Sequence[Any]) -> Size | int | None:
    """Return the product of sizes; `None` if it is unknown, or not a multiple of the number of rows."""
    of_rows = [size.per_row for size in sizes if isinstance(size, Size)]
    if None in sizes or len(of_rows) > 1:
        return None
    others = math.prod(size for size in sizes if not isinstance(size, Size))
    return Size(of_rows[0] * others) if of_rows else others


@rule("RealDiv", "Div", "DivNoNan")
def _divide(step: Step) -> Value:
    is_zero = step.values[1].kind == "size" and step.is_zero(0)
    return CONSTANT if is_zero else elementwise(step, "divide" if step.output.dtype.is_floating else None)


@rule("Select")
def _select(step: Step) -> Value:
    is_of_rows = step.rank(0) == 1 and step.rank(1) > 1 and all(value in (rows(), CONSTANT) for value in step.values)
    return rows() if is_of_rows else elementwise(step)


@rule("BiasAdd")
def _bias(step: Step) -> Value:
    value, channels = step.values[0], 1 if step.attribute("data_format") == b"NCHW" else step.rank(0) - 1
    if value.kind in ("sum", "size") or step.values[1] != CONSTANT or value == rows(channels, value.per_row):
        return mixed(value.reason or step.where)
    return value


@rule("Sum", "Mean", "Max", "Min", "Prod", "All", "Any", "EuclideanNorm", "ArgMax", "ArgMin")
def _reduce(step: Step) -> Value:
    value, how = step.values[0], step.kind.lower()
    if how == "mean" and step.output.dtype.is_integer:
        how = "rounded mean"
    if value.kind == "rows":
        keeps_axes = not step.kind.startswith("Arg") and step.attribute("keep_dims")
        return batch_axis.reduce(value, step.axes(1), step.where, how, keeps_axes=keeps_axes)
    if value.kind != "size":
        return batch_axis.reduce(value, [], step.where, how)
    if step.kind != "Prod":
        return mixed(value.reason, is_certain=False) if step.rank(0) else value
    size = product_of(step.sizes(0) or [None])
    return mixed(value.reason, is_certain=False) if size is None else step.keep_sizes([size])


@rule("L2Loss")
def _sum_of_squares(step: Step) -> Value:
    value = step.values[0]
    return Value("sum", reason=step.where) if value.kind == "rows" else mixed(value.reason)


@rule(*_ALONG)
def _along(step: Step) -> Value:
    return batch_axis.along(step.values[0], _ALONG[step.kind](step), step.where)


@rule(*_FIRST_AXIS)
def _of_first_axis(step: Step) -> Value:
    return first_axis(step, *_FIRST_AXIS[step.kind])


@rule("MaxPoolWithArgmax")
def _pool_with_positions(step: Step) -> Result:
    value = first_axis(step, 0)
    counts_rows = value.kind == "rows" and step.attribute("include_batch_in_index")
    return [value, step.mixed(" counts the rows") if counts_rows else value]


def first_axis(step: Step, main: int, others: Sequence[int] = ()) -> Value:
    """Return the value if each entry of the first axis of `main`, and of `others`, is worked on by itself."""
    found = {i: value for i, value in enumerate(step.values) if value.kind != "constant"}
    if main and found.get(0, CONSTANT).kind == "size":
        del found[0]  # the shape of a gradient, or of a transposed convolution
    elif "BackpropInput" in step.kind and step.values[0] == CONSTANT:
        return step.of_one_number()
    constants = [step.inputs[i].shape[:1] for i in others if step.values[i] == CONSTANT]
    if any(shape.rank and shape[0] not in (None, 0, 1) for shape in constants):
        return step.of_one_number()
    if not found or any(value != rows(0, value.per_row) or i not in (main, *others) for i, value in found.items()):
        return step.mixed()
    return found.get(main, next(iter(found.values())))


@rule("FusedBatchNormV3", "FusedBatchNormV2", "FusedBatchNorm")
def _normalise(step: Step) -> Result:
    channels = 1 if step.attribute("data_format") == b"NCHW" else step.rank(0) - 1
    value, *parameters = step.values
    of_channels = rows(0, value.per_row)
    if value == rows(channels, value.per_row) and set(parameters) <= {of_channels, CONSTANT}:
        # Each channel by itself: so Keras 2 normalises layers.
        if of_channels not in parameters and step.inputs[1].shape[0] not in (None, 1):
            return step.of_one_number()
        return [value, *[of_channels] * (len(step.operation.outputs) - 1)]
    value = first_axis(step, 0)
    return step.mixed() if value.kind == "rows" and step.attribute("is_training") else value


@rule("SpaceToBatchND", "BatchToSpaceND")
def _blocks(step: Step) -> Value:
    """Follow blocks, which become entries of the first axis, not those of a row one after the other."""
    value = step.values[0]
    if value.kind != "rows":
        return value
    factor = math.prod(int(size) for size in step.static(1))
    if value.axis:
        return step.mixed()
    if step.kind == "SpaceToBatchND":
        return rows(0, -factor) if value.per_row == 1 else step.mixed(is_certain=False)
    return rows() if value.per_row == -factor else step.mixed()


@rule("MatMul", "BatchMatMulV2", "BatchMatMulV3", "BatchMatMul")
def _product(step: Step) -> Value:
    rank = max(step.rank(0), step.rank(1))
    names = ("transpose_a", "transpose_b") if step.kind == "MatMul" else ("adj_x", "adj_y")
    operands = []
    for index, name in enumerate(names):
        value, added = step.values[index], rank - step.rank(index)
        shifted = rows(value.axis + added, value.per_row) if value.kind == "rows" else value
        is_inner = bool(step.attribute(name)) == (index == 0)
        contracted = rank - 2 if is_inner else rank - 1
        operands.append(Contraction(shifted, rank, tuple(range(rank - 2)), (contracted,)))
    left, right = operands
    value = batch_axis.contract(left, right, step.where)
    is_of_batch = value.kind == "rows" and value.axis < rank - 2
    return fitting(step, value, value.axis - rank) if is_of_batch else value


@rule("Einsum")
def _einsum(step: Step) -> Value:
    of_inputs, output = _labels(step)
    inputs = list(zip(step.values, of_inputs, step.inputs, strict=True))
    found = [(value, labels) for value, labels, _ in inputs if value.kind != "constant"]
    reduced = [value for value, _ in found if value.kind != "rows"]
    if reduced:
        return reduced[0] if len(found) == 1 else mixed(reduced[0].reason)
    axes = {(labels[value.axis], value.per_row) for value, labels in found}
    if len(axes) > 1:
        return step.mixed(" combines different rows")
    ((label, per_row),) = axes
    for value, labels, tensor in inputs:
        if value == CONSTANT and label in labels and tensor.shape[labels.index(label)] not in (None, 1):
            return step.of_one_number()
    if label in output:
        return rows(output.index(label), per_row)
    return Value("sum", reason=step.where) if len(found) == len(inputs) else step.mixed()


def _labels(step: Step) -> tuple[list[str], str]:
    inputs, output = step.attribute("equation").decode().replace(" ", "").split("->")
    wide = [step.rank(i) - len(part) + 3 for i, part in enumerate(inputs.split(",")) if "..." in part]
    labels = "0123456789"[: max(wide, default=0)]
    parts = []
    for i, part in enumerate(inputs.split(",")):
        count = step.rank(i) - len(part) + 3
        parts.append(part.replace("...", labels[len(labels) - count :] if count else ""))
    return parts, output.replace("...", labels)
