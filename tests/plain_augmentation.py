"""What the layers that augment images are to do, written down with whole numbers and loops, without a framework."""

from __future__ import annotations

import math

import numpy as np
import scipy.stats

WORD = 2**32
FIRST_DRAWS = {"RandomFlipCrop": 0, "RandomErasing": 65536, "MixUp": 131072, "CutMix": 196608}


def threefry(key, counter):
    """Threefry-2x32-20 as in figure 4 of the paper: a round mixes, and after every fourth the key is added."""
    rotations = [13, 15, 26, 6, 17, 29, 16, 24]
    keys = [key[0], key[1], key[0] ^ key[1] ^ 0x1BD11BDA]
    x, y = (counter[0] + keys[0]) % WORD, (counter[1] + keys[1]) % WORD
    for number in range(20):
        bits = rotations[number % 8]
        x = (x + y) % WORD
        y = ((y << bits) % WORD | y >> (32 - bits)) ^ x
        if number % 4 == 3:
            time = number // 4 + 1
            x, y = (x + keys[time % 3]) % WORD, (y + keys[(time + 1) % 3] + time) % WORD
    return x, y


def words(layer, step, example, count):
    """The words that an example draws in a call of a layer."""
    first = FIRST_DRAWS[type(layer).__name__]
    return [threefry((layer.seed, step), (example, (first + i) // 2))[i % 2] for i in range(count)]


def below(word, bound):
    return word * bound // WORD


def uniform(word):
    return (word >> 8) / 2**24


def flip_crop(layer, images, step, first=0):
    count, height, width, channels = images.shape
    out_height, out_width = layer.height or height, layer.width or width
    out = np.zeros((count, out_height, out_width, channels), images.dtype)
    for n in range(count):
        drawn = words(layer, step, first + n, 4)
        top = below(drawn[0], height + 2 * layer.padding - out_height + 1) - layer.padding
        left = below(drawn[1], width + 2 * layer.padding - out_width + 1) - layer.padding
        for i in range(out_height):
            row = top + (out_height - 1 - i if layer.vertical and drawn[2] >= WORD // 2 else i)
            for j in range(out_width):
                column = left + (out_width - 1 - j if layer.horizontal and drawn[3] >= WORD // 2 else j)
                if 0 <= row < height and 0 <= column < width:
                    out[n, i, j] = images[n, row, column]
    return out


def erasing_sizes(layer, height, width):
    sizes = []
    for i in range(64):
        area = height * width * (layer.scale[0] + (layer.scale[1] - layer.scale[0]) * (i + 0.5) / 64)
        for j in range(64):
            ratio = layer.ratio[0] * (layer.ratio[1] / layer.ratio[0]) ** ((j + 0.5) / 64)
            size = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
            if 1 <= size[0] <= height and 1 <= size[1] <= width:
                sizes.append(size)
    return sizes


def erasing(layer, images, step, first=0):
    out = images.copy()
    sizes = erasing_sizes(layer, *images.shape[1:3])
    for n in range(len(images)):
        chance, size, top, left = words(layer, step, first + n, 4)
        if uniform(chance) < layer.probability:
            height, width = sizes[below(size, len(sizes))]
            top, left = below(top, images.shape[1] - height + 1), below(left, images.shape[2] - width + 1)
            out[n, top : top + height, left : left + width] = layer.value
    return out


def neighbour(n, count):
    """The number of the example with which another is mixed in a batch of `count`, or `None`."""
    other = n + 1 if n % 2 == 0 else n - 1
    return other if other < count else None


def mix_up(layer, images, labels, step):
    knots = scipy.stats.beta.ppf(np.clip(np.arange(1025) / 1024, 2**-32, 1 - 2**-32), layer.alpha, layer.alpha)
    out, out_labels = images.astype("float64"), labels.astype("float64")
    for n in range(len(images)):
        other = neighbour(n, len(images))
        if other is None:
            continue
        (word,) = words(layer, step, n, 1)
        level, rest = word >> 22, (word % 2**22) / 2**22
        part = knots[level] + rest * (knots[level + 1] - knots[level])
        out[n] = part * images[n] + (1 - part) * images[other].astype("float64")
        out_labels[n] = part * labels[n] + (1 - part) * labels[other].astype("float64")
    return out, out_labels


def cut_mix(layer, images, labels, step):
    out, out_labels = images.copy(), labels.astype("float64")
    _, height, width, _ = images.shape
    for n in range(len(images)):
        other = neighbour(n, len(images))
        if other is None:
            continue
        word, middle_row, middle_column = words(layer, step, n, 3)
        stays = scipy.stats.beta.ppf(((word >> 22) + 0.5) / 1024, layer.alpha, layer.alpha)
        tall, wide = int(height * math.sqrt(1 - stays)), int(width * math.sqrt(1 - stays))
        row, column = below(middle_row, height), below(middle_column, width)
        top, bottom = max(row - tall // 2, 0), min(row + tall // 2, height)
        left, right = max(column - wide // 2, 0), min(column + wide // 2, width)
        out[n, top:bottom, left:right] = images[other, top:bottom, left:right]
        part = 1 - (bottom - top) * (right - left) / (height * width)
        out_labels[n] = part * labels[n] + (1 - part) * labels[other].astype("float64")
    return out, out_labels


def digits(count):
    """Images of scikit-learn's digits, of shape (count, 8, 8, 1) and float32, and their classes."""
    from sklearn.datasets import load_digits

    data = load_digits()
    return data.images[:count, :, :, None].astype("float32"), data.target[:count]


def photograph_parts(count, size=40):
    """Parts of scikit-learn's two photographs, of shape (count, size, size, 3) and uint8."""
    from sklearn.datasets import load_sample_images

    images = load_sample_images().images
    places = [(37 * n % (427 - size), 91 * n % (640 - size)) for n in range(count)]
    return np.stack([images[n % 2][i : i + size, j : j + size] for n, (i, j) in enumerate(places)])


def one_hot(classes, count=10):
    return np.eye(count, dtype="float32")[classes]
