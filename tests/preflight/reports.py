"""Reports that the tests about them share."""

from keras_tpu_ext.preflight import PreflightReport
from keras_tpu_ext.preflight.results import Buffer, Collectives, LayerTime, MemoryUse, StepTime

GIB, MIB = 2**30, 2**20

BUFFERS = (
    Buffer(512 * MIB, "conv1", "bf16[128,56,56,256]"),
    Buffer(1010 * MIB, "block/conv2", "bf16[128,28,28,512]", backward=True),
)
MEMORY = MemoryUse(4 * GIB, 16 * GIB, 1 * GIB, 3 * GIB, BUFFERS)
LAYERS = (
    LayerTime("conv1", 0.006, 0.0045, 6e9, 2 * 10**7, 0.25),
    LayerTime("dense", 0.003, 0.0, 0.0, 0, 0.0),
    LayerTime("(optimizer)", 0.001, 0.0, 0.0, 10**6, 0.0),
)
TIME = StepTime(
    seconds=0.010,
    by_compiler=0.75,
    flops=1.5e12,
    mfu=0.5,
    intensity=120.4,
    bound="memory",
    shares={"matrix units": 0.25, "memory": 0.7, "collectives": 0.05},
)


def report(**changes):
    facts = {
        "model": "resnet50",
        "target": "v5e-8",
        "framework": "Keras 3 on JAX",
        "chips": 8,
        "devices": 8,
        "global_batch": 1024,
        "per_replica_batch": 128,
        "memory": MEMORY,
        "time": TIME,
        "layers": LAYERS,
        "collectives": Collectives(3, 102_000_000, 0.0012),
        "host_bytes": 150_000_000,
        "largest_per_replica_batch": 512,
        "versions": {"jax": "0.10.2"},
    }
    return PreflightReport(**facts | changes)
