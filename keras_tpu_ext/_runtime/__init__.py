"""The one seam for frameworks: what the package needs done, whichever Keras this process is on."""

from keras_tpu_ext._runtime.common.protocols import OpenedStrategy as OpenedStrategy
from keras_tpu_ext._runtime.common.select import load as _load

_runtime = _load()

keras = _runtime.keras
ops = _runtime.ops
PyDataset = _runtime.PyDataset
TrainStep = _runtime.TrainStep
tree = _runtime.tree
words = _runtime.words

# Devices and strategies
count_gpus = _runtime.count_gpus
distribute = _runtime.distribute
is_chief = _runtime.is_chief
num_workers = _runtime.num_workers
open_cpu = _runtime.open_cpu
open_gpus = _runtime.open_gpus
open_tpu = _runtime.open_tpu
open_workers = _runtime.open_workers
scope = _runtime.scope

# TensorFlow Addons
import_addons = _runtime.import_addons

# Models
calls = _runtime.calls
clone = _runtime.clone
draws_random_numbers = _runtime.draws_random_numbers
expects_logits = _runtime.expects_logits
flatten_layers = _runtime.flatten_layers
inputs_and_outputs = _runtime.inputs_and_outputs
is_compiled = _runtime.is_compiled
losses = _runtime.losses
metrics = _runtime.metrics
output_activations = _runtime.output_activations
path_of = _runtime.path_of
sees_its_replica_only = _runtime.sees_its_replica_only
softmaxes = _runtime.softmaxes

# Inside a layer
add_count = _runtime.add_count
pick = _runtime.pick
with_shape = _runtime.with_shape

# The batch that a layer is called with
place_in_batch = _runtime.place_in_batch
row_weights = _runtime.row_weights
sum_over_replicas = _runtime.sum_over_replicas

# What a layer computes with
asks_for_shapes = _runtime.asks_for_shapes
exact_product = _runtime.exact_product
own_dtypes = _runtime.own_dtypes
value_of = _runtime.value_of

# Dtype policies
get_dtype_policy = _runtime.get_dtype_policy
parse_dtype_policy = _runtime.parse_dtype_policy
set_dtype_policy = _runtime.set_dtype_policy

# What a step does
count_flops = _runtime.count_flops
device_name = _runtime.device_name
examples_seen = _runtime.examples_seen
intercept_executions = _runtime.intercept_executions
loss_scale = _runtime.loss_scale
lower_step = _runtime.lower_step
num_replicas = _runtime.num_replicas
record_gradients = _runtime.record_gradients
scalar_files = _runtime.scalar_files
show_as_they_are = _runtime.show_as_they_are
skipped_steps = _runtime.skipped_steps
train_steps = _runtime.train_steps
unwatch_overflow = _runtime.unwatch_overflow
watch_overflow = _runtime.watch_overflow
