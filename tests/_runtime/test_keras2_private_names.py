"""The attributes of Keras 2's objects that are private and used; see test_private_names.py."""

import tempfile

import numpy as np
import pytest
import tensorflow as tf

import private_name_table
from keras_tpu_ext._runtime.compat.keras2 import in_symbolic_call, private
from keras_tpu_ext._runtime.keras2.program import _SAVED_EPOCH
from private_names import attributes, check_attribute, mend, model

pytestmark = pytest.mark.runtimes("keras2_tf")


def trained():
    made = model()
    made.fit(np.ones((2, 2)), np.ones((2, 1)), verbose=0)
    return made


def epoch_in_a_backup():
    with tempfile.TemporaryDirectory() as folder:
        backup = tf.keras.callbacks.BackupAndRestore(folder, delete_checkpoint=False)
        model().fit(np.ones((2, 2)), np.ones((2, 1)), epochs=3, verbose=0, callbacks=[backup])
        return tf.train.load_variable(tf.train.latest_checkpoint(f"{folder}/chief"), _SAVED_EPOCH)


def handler():
    return private("engine.data_adapter").DataHandler(np.ones((4, 2)), batch_size=2, epochs=1)


def masked():
    return tf.keras.layers.Embedding(3, 2, mask_zero=True)(np.array([[1, 0]]))


def attention():
    layer = tf.keras.layers.MultiHeadAttention(1, 2)
    layer(np.ones((1, 2, 2)), np.ones((1, 2, 2)))
    return layer


def legacy_optimizer():
    optimizer = tf.keras.optimizers.legacy.Adam()
    optimizer._create_all_weights([tf.Variable(1.0)])
    return optimizer


def scaling_optimizer():
    return tf.keras.mixed_precision.LossScaleOptimizer(tf.keras.optimizers.SGD())


def random_layer():
    tf.keras.backend.experimental.enable_tf_random_generator()
    layer = tf.keras.layers.Dropout(0.5)
    tf.keras.backend.experimental.disable_tf_random_generator()
    layer.build((2,))
    return layer


ATTRIBUTES = {
    "BackupAndRestore's file": lambda: epoch_in_a_backup() == 2,
    "DataHandler._adapter": lambda: handler()._adapter.should_recreate_iterator() is False,
    "DataHandler._current_step": lambda: handler()._current_step == 0,
    "DataHandler._dataset": lambda: iter(handler()._dataset),
    "DataHandler._inferred_steps": lambda: handler()._inferred_steps == 2,
    "DataHandler._initial_epoch": lambda: handler()._initial_epoch == 0,
    "DataHandler._initial_step": lambda: handler()._initial_step == 0,
    "DataHandler._insufficient_data": lambda: handler()._insufficient_data is False,
    "DataHandler._model": lambda: hasattr(handler(), "_model"),
    "DataHandler._step_increment": lambda: handler()._step_increment == 0,
    "Functional._nested_inputs": lambda: model()._nested_inputs,
    "Functional._nested_outputs": lambda: model()._nested_outputs,
    "Functional._nodes_by_depth": lambda: [
        (node.layer, node.keras_inputs, node.outputs)
        for of_depth in model()._nodes_by_depth.values()
        for node in of_depth
    ],
    "KerasTensor._keras_history": lambda: model().outputs[0]._keras_history.layer.name,
    "Layer._activity_regularizer": (
        lambda: tf.keras.layers.Dense(1, activity_regularizer="l2")._activity_regularizer
    ),
    "Layer._callable_losses": lambda: model().layers[1]._callable_losses == [],
    "Layer._eager_losses": lambda: model().layers[1]._eager_losses == [],
    "Layer._random_generator": lambda: random_layer()._random_generator,
    "Loss._fn_kwargs": lambda: tf.keras.losses.BinaryCrossentropy()._fn_kwargs["from_logits"] is False,
    "LossScale._current_loss_scale": lambda: scaling_optimizer()._loss_scale._current_loss_scale.numpy() > 1,
    "LossScaleOptimizer._loss_scale": lambda: scaling_optimizer()._loss_scale.counter,
    "LossesContainer._built": lambda: trained().compiled_loss._built,
    "LossesContainer._loss_weights": lambda: trained().compiled_loss._loss_weights == [None],
    "LossesContainer._losses": lambda: trained().compiled_loss._losses,
    "LossesContainer._output_names": lambda: model().compiled_loss._output_names,
    "LossesContainer._per_output_metrics": lambda: trained().compiled_loss._per_output_metrics == [None],
    "LossesContainer._total_loss_mean": lambda: trained().compiled_loss._total_loss_mean,
    "LossesContainer._user_loss_weights": lambda: hasattr(model().compiled_loss, "_user_loss_weights"),
    "LossesContainer._user_losses": lambda: model().compiled_loss._user_losses,
    "MeanMetricWrapper._fn": lambda: trained().compiled_metrics.metrics[0]._fn,
    "MeanMetricWrapper._fn_kwargs": lambda: trained().compiled_metrics.metrics[0]._fn_kwargs == {},
    "MetricsContainer._built": lambda: trained().compiled_metrics._built,
    "MetricsContainer._metrics": lambda: trained().compiled_metrics._metrics,
    "MetricsContainer._user_metrics": lambda: model().compiled_metrics._user_metrics,
    "MetricsContainer._user_weighted_metrics": lambda: hasattr(model().compiled_metrics, "_user_weighted_metrics"),
    "MetricsContainer._weighted_metrics": lambda: trained().compiled_metrics._weighted_metrics,
    "Model._compile_config": lambda: model()._compile_config.config["metrics"] == ["mae"],
    "Model._distribution_strategy": lambda: hasattr(model(), "_distribution_strategy"),
    "Model._keras_api_names": lambda: "keras.Model" in tf.keras.Model._keras_api_names,
    "Model._steps_per_execution": lambda: trained()._steps_per_execution,
    "Model._test_counter": lambda: trained()._test_counter,
    "Model._train_counter": lambda: trained()._train_counter,
    "Model.compiled_loss": lambda: model().compiled_loss,
    "Model.compiled_metrics": lambda: model().compiled_metrics,
    "MultiHeadAttention._softmax": lambda: attention()._softmax,
    "Optimizer._distribution_strategy": lambda: all(
        hasattr(optimizers.SGD(), "_distribution_strategy")
        for optimizers in (tf.keras.optimizers, tf.keras.optimizers.legacy)
    ),
    "Optimizer._create_all_weights": lambda: len(legacy_optimizer().variables()) == 3,
    "Optimizer._hyper": lambda: legacy_optimizer()._hyper["learning_rate"].numpy() > 0,
    "Optimizer._index_dict": lambda: len(trained().optimizer._index_dict) == 2,
    "Optimizer._iterations": lambda: tf.keras.optimizers.SGD()._iterations,
    "RandomGenerator._generator": lambda: random_layer()._random_generator._generator.state,
    "Tensor._keras_mask": lambda: masked()._keras_mask,
    "TensorLikeDataAdapter._shuffle": lambda: handler()._adapter._shuffle is False,
}


def test_every_attribute_of_the_table_is_tried():
    assert attributes(private_name_table.KERAS2) == ATTRIBUTES.keys()


@pytest.mark.parametrize("name", ATTRIBUTES)
def test_an_object_still_carries_it(name):
    check_attribute(name, ATTRIBUTES[name])


def test_layers_are_told_from_the_graph_that_they_are_asked_for_shapes():
    found = []

    class Looking(tf.keras.layers.Layer):
        def call(self, inputs):
            found.append(in_symbolic_call())
            return inputs

    class Subclassed(tf.keras.Model):
        def __init__(self):
            super().__init__()
            self.layer = Looking()

        def call(self, inputs):
            return self.layer(inputs)

    inputs = tf.keras.Input((2,))
    model = tf.keras.Model(inputs, Looking()(inputs))
    Subclassed().build((None, 2))
    assert found, mend("in_symbolic_call")
    assert all(found), mend("in_symbolic_call")
    found.clear()
    model.predict(np.ones((2, 2)), verbose=0)
    model(np.ones((2, 2)))
    assert found == [False, False], mend("in_symbolic_call")
