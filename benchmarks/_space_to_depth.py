"""A strided convolution as one without strides on blocks of pixels: not shipped, see docs/layers.md.

MLPerf's ResNet-50 did its stem so on TPU v3 (space to depth): 7 x 7 with stride 2 on 3 channels becomes 4 x 4 on 12.
"""

from __future__ import annotations

import math
from typing import Any

import keras
from keras import ops


class SpaceToDepthConv2D(keras.layers.Layer):
    """A `Conv2D` with padding "same", whose weights it has.

    Args:
        filters: Number of channels of the outputs.
        kernel_size: Height and width of the kernel.
        strides: Height and width of a block, which must divide those of the images.
        channels: Channels of the images.
        on_host: Whether the images come as blocks already, of shape `(height / strides, width / strides, channels *
            strides**2)` with a border of zeros, see `blocks`.
        **kwargs: What every layer takes.
    """

    def __init__(
        self, filters: int, kernel_size: int, strides: int, channels: int, *, on_host: bool = False, **kwargs: Any
    ) -> None:
        super().__init__(**kwargs)
        self.filters, self.kernel_size, self.strides, self.channels = filters, kernel_size, strides, channels
        self.on_host = on_host
        self.taps = math.ceil(kernel_size / strides)

    def build(self, input_shape: Any) -> None:
        """Make the weights of the `Conv2D`."""
        shape = (self.kernel_size, self.kernel_size, self.channels, self.filters)
        self.kernel = self.add_weight(shape=shape, name="kernel")
        self.bias = self.add_weight(shape=(self.filters,), initializer="zeros", name="bias")

    def call(self, images: Any) -> Any:
        """Return what the `Conv2D` returns."""
        x = images if self.on_host else blocks(images, self.kernel_size, self.strides)
        size, more = self.strides, self.taps * self.strides - self.kernel_size
        kernel = ops.pad(self.kernel, ((0, more), (0, more), (0, 0), (0, 0)))
        kernel = ops.reshape(kernel, (self.taps, size, self.taps, size, self.channels, self.filters))
        kernel = ops.reshape(ops.transpose(kernel, (0, 2, 1, 3, 4, 5)), (self.taps, self.taps, -1, self.filters))
        return ops.conv(x, ops.cast(kernel, x.dtype), padding="valid") + self.bias


def blocks(images: Any, kernel_size: int, strides: int) -> Any:
    """Return images with blocks of pixels as channels, and the border that padding "same" adds."""
    height, width, channels = images.shape[1:]
    border, more = max(kernel_size - strides, 0), math.ceil(kernel_size / strides) * strides - kernel_size
    before, after = border // 2, border - border // 2 + more
    x = ops.pad(images, ((0, 0), (before, after), (before, after), (0, 0)))
    rows, columns = ((size + before + after) // strides for size in (height, width))
    x = ops.reshape(x, (-1, rows, strides, columns, strides, channels))
    return ops.reshape(ops.transpose(x, (0, 1, 3, 2, 4, 5)), (-1, rows, columns, strides**2 * channels))
