"""Which instructions are collectives, and the devices that they join, in the forms that XLA prints."""

import pytest

from keras_tpu_ext.preflight._hlo.collectives import async_part, axes_of, collective_of, is_collective, start_of
from keras_tpu_ext.preflight._hlo.module import Module

pytestmark = pytest.mark.gate_on("keras3_jax")

FUSED = """\
%gathering (g: f32[8]) -> f32[64] {
  %g = f32[8]{0} parameter(0)
  ROOT %deep = f32[64]{0} all-gather(%g), dimensions={0}
}

%started (s: f32[8]) -> f32[64] {
  %s = f32[8]{0} parameter(0)
  %other = f32[8]{0} negate(%s)
  ROOT %inner = f32[64]{0} fusion(%other), kind=kCustom, calls=%gathering
}

%all-reduce-scatter.1 (r: f32[64]) -> f32[8] {
  %r = f32[64]{0} parameter(0)
  %sum = f32[64]{0} all-reduce(%r), replica_groups={{0,4},{1,5}}, to_apply=%add
  ROOT %part = f32[8]{0} dynamic-slice(%sum), dynamic_slice_sizes={8}
}
"""


def module_of(line):
    return Module.parse(f"{FUSED}\nENTRY %main (p: f32[8]) -> f32[8] {{\n  {line}\n}}\n")


def only(line):
    (instruction,) = module_of(line).entry.instructions
    return instruction


@pytest.mark.parametrize(
    ("line", "collective", "part"),
    [
        ("%a = f32[8]{0} all-reduce(%p), to_apply=%add", True, ""),
        ("%a = f32[8]{0} all-reduce-start(%p), to_apply=%add", True, "start"),
        ("%a = f32[8]{0} all-reduce-done(%s)", False, "done"),
        ("%a = f32[1]{0} reduce-scatter(%p), to_apply=%add", True, ""),
        ("%a = f32[8]{0} all-to-all(%p), dimensions={0}", True, ""),
        ("%a = f32[8]{0} collective-broadcast(%p)", True, ""),
        ("%a = (f32[8]{0}, f32[8]{0}, u32[]) collective-permute-start(%p)", True, "start"),
        ("%a = f32[8]{0} collective-permute-done(%s)", False, "done"),
        ("%async-collective-start.3 = f32[64]{0} fusion(%p), kind=kCustom, calls=%started", True, "start"),
        ("%async-collective-start = f32[64]{0} fusion(%p), kind=kCustom, calls=%started", True, "start"),
        ("%async-collective-done.3 = f32[64]{0} fusion(%p), kind=kCustom, calls=%started", False, "done"),
        ("%a = f32[8]{0} fusion(%p), kind=kCustom, calls=%all-reduce-scatter.1", True, ""),
        ("%a = f32[8]{0} fusion(%p), kind=kLoop, calls=%negate", False, ""),
        ("%a = (f32[8]{0}, f32[8]{0}, u32[]) copy-start(%p)", False, ""),
        ("%a = f32[8]{0} copy-done(%s)", False, ""),
        ("%a = f32[] reduce(%p, %zero), to_apply=%add", False, ""),
    ],
)
def test_what_is_a_collective_and_what_begins_or_ends_one(line, collective, part):
    assert (is_collective(only(line)), async_part(only(line))) == (collective, part)


@pytest.mark.parametrize(
    ("line", "start"),
    [
        ("%all-gather-done.1 = f32[8]{0} all-gather-done(%all-gather-start.7)", "all-gather-start.7"),
        ("%async-collective-done.12 = f32[64]{0} fusion(%x.1, %x.2), calls=%a", "async-collective-start.12"),
        ("%async-collective-done = f32[64]{0} fusion(%x.1, %x.2), calls=%a", "async-collective-start"),
    ],
)
def test_what_ends_belongs_to_what_began(line, start):
    assert start_of(only(line)) == start


@pytest.mark.parametrize(
    ("line", "kind", "size"),
    [
        ("%async-collective-start.3 = (f32[8]{0}, f32[64]{0}) fusion(%p), calls=%started", "all-gather", 256),
        ("%a = (f32[8]{0}, f32[64]{0}) all-gather-start(%p), dimensions={0}", "all-gather", 256),
        ("%a = f32[8]{0} all-reduce(%p), to_apply=%started", "all-reduce", 32),
        ("%a = f32[8]{0} fusion(%p), kind=kCustom, calls=%all-reduce-scatter.1", "reduce-scatter", 32),
    ],
)
def test_the_collective_of_a_fusion_is_in_it_at_any_depth(line, kind, size):
    module = module_of(line)
    found = collective_of(module.entry.root, module, 16)
    assert (found.kind, found.bytes) == (kind, size)
    assert found.group == ((0, 4) if kind == "reduce-scatter" else tuple(range(16)))


TWO_BY_FOUR = "mesh['axis_0'=2,'axis_1'=4]"


@pytest.mark.parametrize(
    ("groups", "first"),
    [
        ("replica_groups={{0,4},{1,5},{2,6},{3,7}}", (0, 4)),
        ("replica_groups=[4,2]<=[2,4]T(1,0)", (0, 4)),
        ("replica_groups=[2,4]<=[8]", (0, 1, 2, 3)),
        ("replica_groups=[2,4]<=[2,2,2]T(1,0,2)", (0, 1, 4, 5)),
        (f"replica_groups={TWO_BY_FOUR} {{'axis_1'}}", (0, 1, 2, 3)),
        (f"replica_groups={TWO_BY_FOUR} {{'axis_0'}}", (0, 4)),
        (f"replica_groups={TWO_BY_FOUR} {{'axis_0','axis_1'}}", tuple(range(8))),
        ("replica_groups=mesh['axis_0'=8,'axis_1'=2] {'axis_0':(2)4}", (0, 2, 4, 6)),
        ("replica_groups=mesh['axis_0'=8,'axis_1'=2] {'axis_0':(1)2}", (0, 8)),
        ("replica_groups=mesh['axis_0'=8,'axis_1'=2] {'axis_0':(1)2,'axis_1'}", (0, 1, 8, 9)),
        (f"replica_groups={TWO_BY_FOUR}, device_ids=([4,2]T(1,0)) {{'axis_1'}}", (0, 2, 4, 6)),
        (f"replica_groups={TWO_BY_FOUR}, device_ids=([8]) {{'axis_1'}}", (0, 1, 2, 3)),
        ("source_target_pairs={{0,0},{1,3}}", (1, 3)),
        ("source_target_pairs={{2,3},{3,2},{4,5},{5,4}}", (2, 3)),
        ("source_target_pairs={{0,1},{1,2},{2,3},{3,0}}", (0, 1, 2, 3)),
        ("source_target_pairs={{0,0},{1,1}}", (0,)),
        ("replica_groups={}", tuple(range(16))),
        ("channel_id=1", tuple(range(16))),
    ],
)
def test_the_first_group_in_all_forms(groups, first):
    line = f'%a = f32[8]{{0}} all-gather(%p), {groups}, dimensions={{0}}, metadata={{op_name="a"}}'
    module = module_of(line)
    assert collective_of(module.entry.root, module, 16).group == first


@pytest.mark.parametrize(
    ("group", "axes"),
    [
        ((0, 4), ("data",)),
        ((0, 1, 2, 3), ("model",)),
        ((5, 7), ("model",)),
        ((1, 4), ("data", "model")),
        (range(8), ("data", "model")),
        ((3,), ()),
    ],
)
def test_a_group_is_along_the_axes_in_which_its_devices_differ(group, axes):
    assert axes_of(group, {"data": 2, "model": 4}) == axes
    assert axes_of(group, {"data": 2, "stage": 1, "model": 4}) == axes
