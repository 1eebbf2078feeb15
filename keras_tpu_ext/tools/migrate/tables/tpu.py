"""TensorFlow's names for TPUs and strategies, and what takes their place."""

from __future__ import annotations

from keras_tpu_ext.tools.migrate.tables.rows import read_rows

_NOTHING = "nothing: strategy_scope finds the TPU"

TPU: dict[str, str] = read_rows(f"""
tf.distribute.cluster_resolver.TPUClusterResolver: kte.strategy_scope()
tf.distribute.cluster_resolver.TPUClusterResolver.connect: kte.strategy_scope()
tf.distribute.TPUStrategy: kte.strategy_scope()
tf.distribute.experimental.TPUStrategy: kte.strategy_scope()
tf.distribute.MirroredStrategy: kte.strategy_scope()
tf.distribute.OneDeviceStrategy: kte.strategy_scope()
tf.distribute.get_strategy: kte.strategy_scope()
tf.distribute.has_strategy: kte.strategy_scope()
tf.distribute.Strategy: kte.strategy_scope()
tf.config.experimental_connect_to_cluster: {_NOTHING}
tf.config.experimental_connect_to_host: {_NOTHING}
tf.tpu.experimental.initialize_tpu_system: {_NOTHING}
tf.tpu.experimental.shutdown_tpu_system: {_NOTHING}
tf.config.list_logical_devices: kte.strategy_scope().num_replicas
tf.config.experimental.list_logical_devices: kte.strategy_scope().num_replicas
tf.config.list_physical_devices: kte.strategy_scope().num_replicas
tf.config.experimental.list_physical_devices: kte.strategy_scope().num_replicas
""")

STRATEGIES = tuple(name for name in TPU if name.endswith(("Strategy", "get_strategy")))
RESOLVERS = tuple(name for name in TPU if "TPUClusterResolver" in name)

# Of a strategy.
STRATEGY_ATTRIBUTES: dict[str, str] = read_rows("""
scope: scope
num_replicas_in_sync: scope.num_replicas
experimental_distribute_dataset: the dataset itself, which fit splits
""")
