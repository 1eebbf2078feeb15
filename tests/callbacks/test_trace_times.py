"""What traces of TPUs, GPUs and CPUs show; those of TPUs and GPUs are written here, from the public schema."""

import pytest

from keras_tpu_ext._runtime.common.layer_names import LayerNames
from keras_tpu_ext.callbacks._xplane import Span, read_xplane
from keras_tpu_ext.callbacks.trace import divide
from protobuf_writer import message, plane, programs

pytestmark = pytest.mark.gate_on("keras3_jax")
NAMES = LayerNames(("wide", "out"), {"adam": "(optimizer)", "compile_loss": "(loss)"})
HOST = plane("/host:CPU", {"python": [("step", 0, 50, {}), ("step", 50, 100, {})]})


def read(*planes):
    recording = read_xplane(message({1: list(planes)}), "step")
    window = Span(recording.steps[0].begin, recording.steps[-1].end)
    seconds, rows = divide(recording.devices, window, NAMES)
    return (
        {name: round(1e12 * part, 6) for name, part in seconds.items() if part},
        [(row.name, row.layer, row.backward, row.count, round(1e12 * row.seconds, 6)) for row in rows],
    )


def tpu(number, ops, program=(0, 90)):
    lines = {"XLA Modules": [("jit_train_step(7)", *program, {})], "XLA Ops": ops, "Steps": [("1", 0, 100, {})]}
    return plane(f"/device:TPU:{number}", lines, ["tf_op", "hlo_category"])


def test_a_tpu():
    ops = [
        ("while.1", 0, 50, {"tf_op": "jit(train_step)/while:"}),
        ("fusion.1", 10, 40, {"tf_op": "jit(train_step)/while/body/jvp(wide)/dot_general:"}),
        ("fusion.2", 50, 60, {"tf_op": "jit(train_step)/transpose(jvp(out))/dot_general:"}),
        ("all-reduce.3", 60, 80, {"tf_op": "jit(train_step)/transpose(jvp(out))/dot_general:"}),
        ("late.4", 95, 120, {"tf_op": "jit(train_step)/adam/add:"}),  # half of it after the last step
    ]
    seconds, rows = read(HOST, tpu(0, ops))
    assert seconds == {"compute": 65, "collectives": 20, "idle": 10, "host": 5}
    assert rows == [
        ("fusion.1", "wide", False, 1, 30),
        ("while.1", "(other)", False, 1, 20),  # without what is in it
        ("all-reduce.3", "out", True, 1, 20),
        ("fusion.2", "out", True, 1, 10),
        ("late.4", "(optimizer)", False, 1, 5),
    ]


def test_several_tpus_are_a_mean():
    each = [[("fusion.1", 0, end, {"tf_op": "jit(f)/jvp(wide)/dot_general:"})] for end in (40, 60)]
    seconds, rows = read(HOST, *(tpu(i, ops, (0, 100)) for i, ops in enumerate(each)))
    assert seconds == {"compute": 50, "idle": 50}
    assert rows == [("fusion.1", "wide", False, 1, 50)]


def test_a_gpu_has_streams_and_names_its_operations_in_the_program():
    of = {"hlo_module": "jit_train_step"}
    lines = {
        "Stream #1(compute)": [("kernel_a", 0, 40, {**of, "hlo_op": "gemm.1"}), ("MemcpyH2D", 40, 50, {})],
        "Stream #2(nccl)": [("ncclDevKernel_AllReduce", 20, 80, {**of, "hlo_op": "all-reduce-start.1"})],
        "Launch Stats": [("kernel_a", 0, 100, {})],
    }
    gpu = plane("/device:GPU:0", lines, ["hlo_op", "hlo_module"])
    stacks = {
        "gemm.1": "jit(train_step)/jvp(wide)/dot_general",
        "all-reduce-start.1": "jit(train_step)/transpose(jvp(wide))/add",
    }
    seconds, rows = read(HOST, gpu, programs("jit_train_step", stacks))
    assert seconds == {"compute": 50, "collectives": 30, "host": 20}
    assert rows == [
        ("all-reduce-start.1", "wide", True, 1, 45),  # half of the time in which others run
        ("gemm.1", "wide", False, 1, 30),
        ("MemcpyH2D", "(other)", False, 1, 5),
    ]


def test_threads_of_tensorflow():
    lines = {
        "python": [("step", 0, 100, {})],
        "tf_Compute/1": [
            ("ExecutorState::Process", 5, 80, {}),
            ("StatefulPartitionedCall/sequential/wide_1/Relu:_MklNativeFusedMatMul", 10, 50, {}),
            ("Iterator::Prefetch", 50, 60, {}),
        ],
        "tf_data_private_threadpool/2": [("GatherV2:GatherV2", 0, 90, {}), ("ExecutorState::Process", 0, 90, {})],
    }
    seconds, rows = read(plane("/host:CPU", lines))
    assert seconds == {"compute": 40, "idle": 35, "host": 25}
    assert rows == [("_MklNativeFusedMatMul", "wide", False, 1, 40)]


def test_an_operation_of_xla_on_a_cpu_that_another_thread_ends():
    def op(name, begin, end, producer):
        return name, begin, end, {"hlo_op": name, "hlo_module": "jit_train_step", "_p": producer}

    lines = {
        "python": [("step", 0, 100, {})],
        "tf_XLAEigen/1": [("ThunkExecutor::Execute", 0, 20, {}), op("dot", 5, 10, 1), op("add", 10, 20, 2)],
        "tf_XLAEigen/2": [
            ("ThunkExecutor::Execute", 60, 70, {}),  # what waited for it
            op("max", 60, 70, 3),
            ("end: max", 69, 70, {"_c": 3}),
            ("end: dot", 71, 72, {"_c": 1}),
        ],
    }
    stacks = {"dot": "jit(train_step)/jvp(wide)/dot_general", "add": "jit(train_step)/adam/add"}
    cpu = plane("/host:CPU", lines, ["hlo_op", "hlo_module", "_p", "_c"])
    seconds, rows = read(cpu, programs("jit_train_step", stacks))
    assert seconds == {"compute": 65, "idle": 5, "host": 30}
    assert rows == [
        ("dot", "wide", False, 1, 45),  # until 60, but for `add`
        ("add", "(optimizer)", False, 1, 10),
        ("max", "(other)", False, 1, 10),
    ]


COLLECTIVES = "all-reduce.1 all-gather-start reduce-scatter.2 all-to-all collective-permute-done.3 CrossReplicaSum"


@pytest.mark.parametrize("name", [*COLLECTIVES.split(), "ncclDevKernel_AllReduce", "CollectiveReduceV2"])
def test_collectives(name):
    assert read(HOST, tpu(0, [(name, 0, 100, {})]))[0] == {"collectives": 100}


@pytest.mark.parametrize("name", ["reduce.1", "reduce-window", "fusion", "scatter", "all_of_it", "gather"])
def test_no_collectives(name):
    assert read(HOST, tpu(0, [(name, 0, 100, {})]))[0] == {"compute": 100}
