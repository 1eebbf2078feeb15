"""Which Keras, and which TensorFlow, the tests run on, and what they mean by `import keras`.

What a fresh process is to build says `from kind_of_keras import keras`: there is no conftest there.
"""

import sys

from keras_tpu_ext._runtime.common.select import chosen
from keras_tpu_ext._system import installed_version

IS_KERAS2 = chosen() == "keras2_tf"
IS_TENSORFLOW_FOR_TPUS = installed_version("tensorflow-tpu") is not None

if IS_KERAS2:
    from keras2_facade import keras3_names

    sys.modules["keras"] = keras = keras3_names()
else:
    import keras as keras
