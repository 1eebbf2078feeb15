import pytest

from keras_tpu_ext import _runtime

policies = _runtime.policies


def test_a_policy_is_set_by_name_and_put_back_as_it_was():
    before = policies.get_dtype_policy()
    try:
        policies.set_dtype_policy("mixed_bfloat16")
        now = policies.get_dtype_policy()
        assert (now.name, now.compute_dtype, now.variable_dtype) == ("mixed_bfloat16", "bfloat16", "float32")
    finally:
        policies.set_dtype_policy(before)
    assert policies.get_dtype_policy().name == before.name


def test_parse_dtype_policy():
    assert policies.parse_dtype_policy("mixed_float16").compute_dtype == "float16"
    for wrong, kind in (("float7", ValueError), ("int8", ValueError), ("bool", ValueError), (3, TypeError)):
        with pytest.raises(kind):
            policies.parse_dtype_policy(wrong)
