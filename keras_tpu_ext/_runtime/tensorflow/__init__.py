"""What Keras 2 and Keras 3 share on TensorFlow."""

from keras_tpu_ext._runtime.common.values import MessageTerms

message_terms = MessageTerms(
    framework="TensorFlow",
    no_gpu="check that `nvidia-smi` shows one and that this TensorFlow was installed with CUDA, "
    "pip install 'tensorflow[and-cuda]'",
    plain_model="its step on replicas is a mean of each replica's own mean, and its clipping and loss scale act on "
    "each replica alone",
    why_compiled="Look for what the step reads from Python: TensorFlow does not log why it traces a function again",
)
