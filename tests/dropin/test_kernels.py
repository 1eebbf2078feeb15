"""Old kernels give after the one line what they gave on TensorFlow 2.15: the same history, the same predictions."""

import json

import pytest

from dropin import running

pytestmark = pytest.mark.runtimes("keras3_jax", "keras2_tf215")

QUICK = {"kfold_tabular"}  # it opens the TPU again and again
LEARNS = {
    "cutmix_mixup",  # by chance, and its batch grows with the replicas
    "reuters_conv1d",  # Nadam, whose momentum in Keras 2.15 grows with each variable; the drop-in tells
}

# Single-precision sums in another order, and Adam's division by the root of small gradients.
RTOL = 2e-3
LOOSER = {"bfloat16_policy": (2e-2, 5e-3)}  # bfloat16 has three digits, and the two compilers fuse differently


def kernel(name, *arguments, quick=False):
    marks = [] if quick else [pytest.mark.exhaustive]
    if name == running.NEEDS_REUTERS and not (running.SHARED_DATA / "reuters.npz").exists():
        marks.append(pytest.mark.skip(reason="no real data: reuters.npz is not there"))
    return pytest.param(name, *arguments, marks=marks)


def check(name, found, replicas):
    reference = running.references()[name]
    assert found["replicas"] == replicas
    if name in LEARNS:
        assert set(found["history"]) == set(reference["history"])
        loss = found["history"]["loss"]
        assert loss[-1] < 0.9 * loss[0]
        return
    rtol, atol = LOOSER.get(name, (RTOL, 1e-5))
    assert running.differences(found, reference | {"replicas": replicas}, rtol=rtol, atol=atol) == []


@pytest.mark.runtimes("keras3_jax")
@pytest.mark.parametrize(
    ("name", "replicas"),
    [kernel(name, n, quick=n == 8 and name in QUICK) for name in running.KERNELS for n in (1, 8)],
)
def test_a_kernel_with_the_line_gives_the_numbers_of_old(name, replicas, tmp_path):
    check(name, running.run(name, replicas=replicas, folder=tmp_path), replicas)


@pytest.mark.runtimes("keras2_tf215")
@pytest.mark.parametrize("name", [kernel(name) for name in running.KERNELS])
def test_the_references_are_what_kernels_give_on_tensorflow_215(name, tmp_path):
    check(name, running.run(name, folder=tmp_path), 1)


def test_each_kernel_has_a_reference():
    assert sorted(running.references()) == running.KERNELS


def test_each_kernel_is_told_from_another_by_its_numbers():
    found = running.references()
    for name in LEARNS:
        del found[name]
    assert all(len(json.dumps(numbers["predictions"])) > 100 for numbers in found.values())


@pytest.mark.parametrize(
    ("found", "told"),
    [
        ({"history": {"loss": [1.0, 0.5]}}, []),
        ({"history": {"loss": [1.0, 0.5001]}}, []),
        ({"history": {"loss": [1.0, 0.6]}}, ["/history/loss[1]: 0.6 instead of 0.5"]),
        ({"history": {"loss": [1.0]}}, ["/history/loss: [1.0] instead of [1.0, 0.5]"]),
        ({"history": {"lr": [1.0, 0.5]}}, ["/history: keys ['lr'] instead of ['loss']"]),
        ({"history": {"loss": [1.0, float("nan")]}}, ["/history/loss[1]: nan instead of 0.5"]),
    ],
)
def test_differences_are_told(found, told):
    assert running.differences(found, {"history": {"loss": [1.0, 0.5]}}, rtol=2e-3) == told


def test_a_kernel_that_fails_is_told_with_what_it_printed(tmp_path, monkeypatch):
    kernels = tmp_path / "kernels"
    kernels.mkdir()
    (kernels / "broken.py").write_text("print('so far'); raise ValueError('and no further')")
    monkeypatch.setattr(running, "HERE", tmp_path)
    with pytest.raises(running.KernelFailedError, match=r"(?s)broken failed.*so far.*and no further"):
        running.run("broken", folder=tmp_path)
