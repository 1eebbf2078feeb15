"""What the layers that augment images are to do, written down with whole numbers and loops, without a framework."""

from __future__ import annotations

import math

import numpy as np
import scipy.stats

WORD = 2**32
FIRST_DRAWS = {"RandomFlipCrop": 0, "RandomErasing": 65536, "MixUp": 131072, "CutMix": 196608, "RandomAffine": 262144}


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


def affine_numbers(layer, drawn, height, width):
    """What an example draws: the slopes of rows and columns, their scales, how far it moves, and whether it lies."""
    one = 2**14
    turns = layer.rotation * ((2 * below(drawn[0], 1024) + 1) / 1024 - 1)
    quarters = round(4 * turns)
    rest = 2 * math.pi * (turns - quarters / 4)
    tangent, cosine, secant = (round(one * value) for value in (math.tan(rest), math.cos(rest), 1 / math.cos(rest)))
    zoom = one + below(drawn[3], 2 * round(layer.zoom * one) + 1) - round(layer.zoom * one)
    slope = below(drawn[4], 2 * round(layer.shear * one) + 1) - round(layer.shear * one) - tangent
    down, right = (
        (below(word, 4097) - 2048) * round(layer.translation * size * 256) // 2048
        for word, size in ((drawn[5], height), (drawn[6], width))
    )
    upside = -1 if layer.vertical and drawn[1] >= WORD // 2 else 1
    aside = -1 if layer.horizontal and drawn[2] >= WORD // 2 else 1
    is_transposed = quarters % 2 == 1
    if is_transposed:
        upside, aside, down, right = aside, upside, right, down
    upside *= -1 if quarters % 4 in (2, 3) else 1
    aside *= -1 if quarters % 4 in (1, 2) else 1
    of_rows, of_columns = upside * (zoom * cosine // one), aside * (zoom * secant // one)
    steep = upside * aside * tangent
    moves = of_rows * (down + steep * right // one) // one, of_columns * right // one
    return slope, (of_rows, of_columns), moves, steep, is_transposed


def on_line(values, place, is_whole):
    """What is at a place, in 256ths, between values along the first axis; beyond them are zeros."""
    first, part = place // 256, place % 256
    near, far = (values[i] if 0 <= i < len(values) else np.zeros_like(values[0]) for i in (first, first + 1))
    between = (256 - part) * near + part * far
    return between if is_whole else between / 256


def affine(layer, images, step, first=0):
    """With whole numbers for `uint8`, which are rounded after each of four times; otherwise float64."""
    is_whole = images.dtype == np.uint8
    count, height, width, _ = images.shape

    def resampled(lines, places, half_up):
        """Each of the lines at places of its own."""
        out = np.array(
            [[on_line(line, place, is_whole) for place in of] for line, of in zip(lines, places, strict=True)]
        )
        if is_whole:  # half of 256 goes up, or to the even neighbour
            out = (out + 128) // 256 if half_up else np.rint(out / 256).astype("int64")
        return out

    def slanted(slope, size):
        return [slope * (2 * i - (size - 1)) // 128 for i in range(size)]

    results = []
    for n in range(count):
        slope, scales, (down, right), steep, is_transposed = affine_numbers(
            layer, words(layer, step, first + n, 7), height, width
        )
        image = images[n].astype("int64" if is_whole else "float64")
        # Wide enough for all that was in the image, whatever the slope.
        beside, above = height, width
        places = [[256 * j + by for j in range(-beside, width + beside)] for by in slanted(slope, height)]
        image = resampled(image, places, True)
        places = [
            (scales[0] * (2 * i - (height - 1)) // 128) + down + 128 * (height - 1)
            for i in range(-above, height + above)
        ]
        image = resampled(image.swapaxes(0, 1), [places] * (width + 2 * beside), False).swapaxes(0, 1)
        places = [by + right + 128 * (width + 2 * beside - 1) for by in slanted(scales[1], width)]
        image = resampled(image, [places] * (height + 2 * above), False)
        places = [[256 * (i + above) + by for i in range(height)] for by in slanted(steep, width)]
        image = resampled(image.swapaxes(0, 1), places, True).swapaxes(0, 1)
        results.append(image.swapaxes(0, 1) if is_transposed else image)
    return np.array(results).astype("uint8" if is_whole else "float64")


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
