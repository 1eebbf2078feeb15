"""Writes the tables of docs/ from what benchmarks have printed, so that no number there is typed by hand.

    python benchmarks/docs_tables.py            # writes them anew
    python benchmarks/docs_tables.py --check    # exits with 1 where a table is another one

In docs/ and in README.md a table stands between `<!-- table: NAME -->` and `<!-- end -->`.
"""

from __future__ import annotations

import argparse
import ast
import importlib
import itertools
import json
import re
import runpy
import sys
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import tomllib

ROOT = Path(__file__).resolve().parents[1]
GIB = 2**30
_TABLE = re.compile(r"(<!-- table: (\w+) -->\n).*?(<!-- end -->)", re.DOTALL)


def result(name: str) -> Any:
    """Return the JSON in the last line of a file of results."""
    return json.loads((ROOT / "benchmarks" / "results" / name).read_text().splitlines()[-1])


def published_rates() -> Iterator[str]:
    """Yield a row for each slice: the estimate, and what others have published."""
    yield "| slice | batch | estimated images/s | published images/s | estimated / published | whose |"
    yield "| --- | ---: | ---: | ---: | ---: | --- |"
    for row in result("published_rates.txt")["rows"]:
        published, ratio = "", ""
        if row["published"] is not None:
            published, ratio = f"{row['published']:,.0f}", f"{row['estimated'] / row['published']:.2f}"
        cells = row["target"], f"{row['batch']:,}", f"{row['estimated']:,.0f}", published, ratio, row["source"]
        yield f"| {' | '.join(cells)} |"


def published_steps() -> Iterator[str]:
    """Yield a row for each work that was measured on real chips: the estimates beside it."""
    yield "| slice | work | measured | the compiler's | by measured | as in a report | by measured | source |"
    yield "| --- | --- | ---: | ---: | ---: | ---: | ---: | --- |"
    for row in result("published_steps.txt")["rows"]:
        measured, plain = row["measured"], row["estimated"][""]
        told = row["estimated"]["copies+collectives"]
        what = f"{row['kind']}, {row['what']}{' (held out)' if row['held_out'] else ''}"
        digits = 1 if measured > 0.01 else 4
        cells = [f"{1e3 * measured:,.{digits}f} ms"]
        for seconds in (plain, told):
            cells += [f"{1e3 * seconds:,.{digits}f} ms", f"{seconds / measured:.2f}"]
        name = row["source"].split("/")[4]
        yield f"| {row['target']} | {what} | {' | '.join(cells)} | [{name}]({row['source']}) |"


def published_runs() -> Iterator[str]:
    """Yield a row for each training that others ran on TPUs: the plan beside the time in its log."""
    yield "| slice | training | steps | took | planned | range | planned / took |"
    yield "| --- | --- | ---: | ---: | ---: | --- | ---: |"
    for row in result("published_runs.txt")["rows"]:
        source = f"https://github.com/mlcommons/{row['logs'].split('/')[0]}"
        version = row["logs"].partition("training_results_")[2].split("/")[0]
        what = {"resnet": "ResNet-50", "bert": "BERT-large"}[row["model"]]
        is_in = "" if row["in_range"] else ", missed"
        low, high = (seconds / 3600 for seconds in row["range"])
        cells = (
            row["target"],
            f"{what}, batch of {row['batch']:,} ([{version}]({source}))",
            f"{row['steps']:,}",
            f"{row['seconds'] / 3600:.2f} h",
            f"{row['planned'] / 3600:.2f} h",
            f"{low:.2f} to {high:.2f} h{is_in}",
            f"{row['planned'] / row['seconds']:.2f}",
        )
        yield f"| {' | '.join(cells)} |"


def large_decoders() -> Iterator[str]:
    """Yield a row for each decoder larger than a chip: the estimate, and what was measured."""
    yield "| decoder | slice | libtpu | sequences | memory per chip | estimated tokens/s | measured | ratio |"
    yield "| --- | --- | --- | ---: | ---: | ---: | ---: | ---: |"
    lines = (ROOT / "benchmarks" / "results" / "large_decoders.txt").read_text().splitlines()
    for row in (row for line in lines if line.startswith("{") for row in json.loads(line)["rows"]):
        estimated, measured, ratio = row["estimated"], "", ""
        if row["measured"]:
            measured = f"[{row['measured']:,.0f}]({row['source']})"
            if row["measured_each"] != row["each"]:
                measured += f" with {row['measured_each']}"
            ratio = "" if estimated is None else f"{estimated / row['measured']:.2f}"
        told = f"{row['needed'] / GIB:.1f} GiB{'' if row['fits'] else ': does not fit'}"
        cells = row["what"], row["target"], row["libtpu"], f"{row['each']} of {row['length']:,}", told
        yield f"| {' | '.join(cells)} | {'' if estimated is None else f'{estimated:,.0f}'} | {measured} | {ratio} |"


def gemma_layouts() -> Iterator[str]:
    """Yield a row for each Gemma and layout: the step, the memory, and what the report took."""
    yield "| model | shard | step | memory per chip | report took | on cores | memory for it |"
    yield "| --- | --- | ---: | ---: | ---: | ---: | ---: |"
    lines = (ROOT / "benchmarks" / "results" / "gemma_layouts.txt").read_text().splitlines()
    rows = [json.loads(line) for line in lines if line.startswith("{")]
    shards = {"auto": '`"auto"`', "fsdp": '`"fsdp"`', "keras-hub": "keras-hub's map"}
    for row in sorted(rows, key=lambda row: (row["what"], list(shards).index(row["shard"]))):
        what = row["what"] if row["what"].endswith("in full") else f"{row['what']} with LoRA"
        step, needed = f"{1e3 * row['estimated']:.0f} ms", f"{row['needed'] / GIB:.1f} GiB"
        took = f"{row['seconds']:.0f} s", str(row["cores"]), f"{row['at_once_gib']:.1f} GiB"
        yield f"| {what} | {shards[row['shard']]} | {step} | {needed} | {' | '.join(took)} |"


def corrections() -> Iterator[str]:
    """Yield a row for each correction: what was measured on a generation."""
    yield "| generation | correction | without bytes | of the nominal bandwidth |"
    yield "| --- | --- | ---: | ---: |"
    for generation, lines in result("published_steps.txt")["corrections"].items():
        for name, line in lines.items():
            latency, part = f"{1e6 * line['latency_s']:.1f} µs", f"{100 * line['efficiency']:.0f} %"
            where = f" (measured on {line['measured_on']})" if "measured_on" in line else ""
            yield f"| {generation} | `{name}`{where} | {latency} | {part} |"


def held_out() -> Iterator[str]:
    """Yield a sentence: how far the estimates of the steps that were held out are off."""
    rows = [row for row in result("published_steps.txt")["rows"] if row["held_out"]]
    errors = [row["estimated"]["copies+collectives"] / row["measured"] - 1 for row in rows]
    told = ", ".join(f"{100 * error:+.1f} %" for error in errors)
    yield f"The {len(rows)} steps that were held out: {told}."


def install() -> Iterator[str]:
    """Yield how to get this package beside an installed Keras; `on_pypi` in pyproject.toml is the switch."""
    if _on_pypi():
        yield from ("```shell", "pip install --no-deps keras-tpu-ext", "```")
        yield ""
        yield "`--no-deps` leaves your Keras and JAX or TensorFlow alone."
    else:
        yield from ("```shell", "pip install --no-deps .", "```")
        yield ""
        yield "In a checkout: it is not on PyPI yet. `--no-deps` leaves your Keras and JAX or TensorFlow alone."


def install_with() -> Iterator[str]:
    """Yield how to get it with a framework."""
    name = "keras-tpu-ext" if _on_pypi() else "."
    yield from ("```shell", f'pip install "{name}[jax]"', f'pip install "{name}[tensorflow]"', "```")


def _on_pypi() -> bool:
    return bool(tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["keras_tpu_ext"]["on_pypi"])


def places() -> Iterator[str]:
    """Yield a row for each place that lends TPUs: what a slice there has."""
    yield "| place | slice | chips | HBM of a chip | bfloat16 peak of a chip | hours |"
    yield "| --- | --- | ---: | ---: | ---: | --- |"
    table = _module("machine.tpu_table")
    for place, name, hours in (
        ("Kaggle", "v5e-8", "9 a session, 20 a week, free"),
        ("Colab", "v5e-1", "12 a session at most, free with limits"),
        ("Colab", "v6e-1", "12 a session at most, paid"),
        ("Cloud", "v5e-8", "as you pay"),
        ("Cloud", "v6e-8", "as you pay"),
        ("Cloud", "v5p-8", "as you pay"),
    ):
        chip, chips = table.parse_accelerator_type(name)
        peak = f"{chip.peak_bf16_flops / 1e12:.0f} TFLOP/s"
        yield f"| {place} | `{name}` | {chips} | {chip.hbm_bytes / GIB:.0f} GiB | {peak} | {hours} |"


def platform_places() -> Iterator[str]:
    """Yield a row for each place where what Keras computes on a TPU is wrong."""
    sys.path.insert(0, str(ROOT / "tests" / "support"))
    from platform_places import HUB, PLACES

    yield "| place | since | what is another one on a TPU | right? | here |"
    yield "| --- | --- | --- | --- | --- |"
    for place, known in {**PLACES, **HUB}.items():
        if "**wrong**" in known.right:
            yield f"| `{place.replace('.src.', '.', 1)}` | {' | '.join(known)} |"


def attention_kernel() -> Iterator[str]:
    """Yield a row for each model and slice: the step with the kernel of attention beside that with XLA's."""
    yield "| model | slice | each chip | kernel | XLA | kernel / XLA | HBM | HBM, XLA | part that is kernels |"
    yield "| --- | --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: |"
    rows = result("attention_kernel.txt")["rows"]
    for kernel, xla in zip(rows[::2], rows[1::2], strict=True):
        times = [f"{1e3 * row['seconds']:.2f} ms" for row in (kernel, xla)]
        sizes = [f"{row['hbm_bytes'] / GIB:.2f} GiB" for row in (kernel, xla)]
        ratio, part = f"{kernel['seconds'] / xla['seconds']:.2f}", f"{100 * kernel['by_kernels']:.0f} %"
        cells = kernel["model"], kernel["target"], str(kernel["each"]), *times, ratio, *sizes, part
        yield f"| {' | '.join(cells)} |"


def tpu_program() -> Iterator[str]:
    """Yield a row for each framework and slice: the step of `TPUModel` beside that of plain Keras."""
    yield "| framework | slice | step | by that of Keras | HBM | by that of Keras | collectives | of Keras |"
    yield "| --- | --- | ---: | ---: | ---: | ---: | ---: | ---: |"
    for framework, file in (("JAX", "tpu_program-jax.txt"), ("TensorFlow", "tpu_program-tensorflow.txt")):
        rows = result(file)["rows"]
        for stock, exact in zip(rows[::2], rows[1::2], strict=True):
            time, memory = (exact[key] / stock[key] for key in ("seconds", "hbm_bytes"))
            step, size = f"{1e3 * exact['seconds']:.1f} ms", f"{exact['hbm_bytes'] / GIB:.2f} GiB"
            counts = f"{exact['collectives']} | {stock['collectives']}"
            yield f"| {framework} | {exact['target']} | {step} | {time:.3f} | {size} | {memory:.3f} | {counts} |"


def memory_limit() -> Iterator[str]:
    """Yield a row for each batch of ResNet-50 in float32."""
    yield "| batch | each chip | needed | there | temporaries | fits | largest batch of a chip |"
    yield "| ---: | ---: | ---: | ---: | ---: | --- | ---: |"
    for row in result("memory_limit-jax.txt")["rows"]:
        memory = row["memory"]
        sizes = [memory[key] for key in ("needed", "available", "temporaries")]
        needed, there, temporaries = ("" if size is None else f"{size / GIB:.2f} GiB" for size in sizes)
        how = f"compiled, in {row['seconds']:.0f} s" if row["largest_was_compiled"] else "worked out"
        largest = f"{row['largest_per_replica_batch']} ({how})"
        cells = f"{row['batch']:,}", str(row["batch"] // 8), needed, there, temporaries, "yes" if row["ok"] else "no"
        yield f"| {' | '.join([*cells, largest])} |"


def resnet50_layers() -> Iterator[str]:
    """Yield a row for each framework, slice and variant of ResNet-50."""
    yield "| framework | slice | layers | step | by that of Keras | images/s | HBM | collectives |"
    yield "| --- | --- | --- | ---: | ---: | ---: | ---: | ---: |"
    for framework, file in (("JAX", "jax"), ("JAX", "v6e-jax"), ("TensorFlow", "tensorflow")):
        stock: dict[str, Any] = {}
        for row in result(f"resnet50_layers-{file}.txt")["rows"]:
            by_stock = row["seconds"] / stock.setdefault(row["target"], row)["seconds"]
            step, size = f"{1e3 * row['seconds']:.1f} ms", f"{row['hbm_bytes'] / GIB:.2f} GiB"
            rate = f"{row['samples_per_sec']:,.0f}"
            cells = framework, row["target"], row["variant"], step, f"{by_stock:.3f}", rate, size
            yield f"| {' | '.join(cells)} | {row['collectives']} |"


def transformers() -> Iterator[str]:
    """Yield a row for each transformer: Keras's own step and that of `for_tpu=True`."""
    yield "| model | slice | Keras | for_tpu | by that of Keras | MFU | HBM | time to compile |"
    yield "| --- | --- | ---: | ---: | ---: | ---: | ---: | ---: |"
    files = [f"transformers{more}-jax.txt" for more in ("", "-others", "-v5e-8", "-v6e-8", "-long", "-gemma")]
    for row in (row for file in files for row in result(file)["rows"]):
        ours, stock = row["for_tpu"], row["stock"]
        cells = [row["model"], row["target"]]
        if "seconds" in stock:
            cells += [f"{1e3 * one['seconds']:.1f} ms" for one in (stock, ours)]
            cells += [f"{ours['seconds'] / stock['seconds']:.3f}", f"{stock['mfu']:.2f} to {ours['mfu']:.2f}"]
            cells += [f"{ours[key] / stock[key]:.2f}" for key in ("hbm_bytes", "compile_seconds")]
        else:
            cells += ["does not fit", f"{1e3 * ours['seconds']:.1f} ms", "", f"{ours['mfu']:.2f}"]
            cells += [f"{ours['hbm_bytes'] / 2**30:.1f} GiB of {stock['hbm_bytes'] / 2**30:.1f} GiB", ""]
        yield f"| {' | '.join(cells)} |"


def decoder_rates() -> Iterator[str]:
    """Yield a row for each chip on which a decoder's rate was published."""
    yield "| slice | micro-batch | update | estimated tokens/s | published | estimated / published |"
    yield "| --- | ---: | ---: | ---: | ---: | ---: |"
    for row in result("decoder_rates.txt")["rows"]:
        times = [row["seconds"] - row["update_seconds"], row["update_seconds"]]
        rates = [row["tokens_per_sec"], row["published_tokens_per_sec"]]
        cells = [row["target"], *(f"{1e3 * time:.2f} ms" for time in times), *(f"{rate:,.0f}" for rate in rates)]
        yield f"| {' | '.join(cells)} | {rates[0] / rates[1]:.2f} |"


def decoder_parts() -> Iterator[str]:
    """Yield a row for each part of that decoder: its time in a micro-batch, and the least that it can take."""
    rows = result("decoder_rates.txt")["rows"]
    yield f"| of a micro-batch | {' | '.join(row['target'] + ' | at least' for row in rows)} |"
    yield f"| --- |{' ---: | ---: |' * len(rows)}"
    for part in rows[0]["parts"]:
        times = (f"{1e3 * time:.2f} ms" for row in rows for time in row["parts"][part])
        yield f"| {part} | {' | '.join(times)} |"
    sums = (f"{1e3 * sum(times):.2f} ms" for row in rows for times in zip(*row["parts"].values(), strict=True))
    yield f"| all | {' | '.join(sums)} |"
    # A micro-batch is 4 x 2,048 tokens.
    published = (f"{1e3 * 8192 / row['published_tokens_per_sec']:.2f} ms |" for row in rows)
    yield f"| published | {' | '.join(published)} |"


def tried_for_transformers() -> Iterator[str]:
    """Yield a row for each thing that was tried for transformers, beside what the package does."""
    yield "| v5e-1 | as it is | tried | by that as it is | temporary memory |"
    yield "| --- | ---: | ---: | ---: | ---: |"
    for row in result("tried_for_transformers.txt")["rows"]:
        cells = [row["what"], *(f"{row[key]:.2f} ms" for key in ("kept_ms", "tried_ms"))]
        cells += [f"{row['tried_ms'] / row['kept_ms']:.2f}", f"{row['kept_mib']:.0f} to {row['tried_mib']:.0f} MiB"]
        yield f"| {' | '.join(cells)} |"


def for_tpu_trainings() -> Iterator[str]:
    """Yield a row for each model that was trained to the end with and without `for_tpu`."""
    yield "| model | seeds | validation loss | with for_tpu | difference | its standard error | spread over seeds |"
    yield "| --- | ---: | ---: | ---: | ---: | ---: | ---: |"
    for row in result("for_tpu_trainings.txt")["rows"]:
        means = [sum(row[key]) / len(row[key]) for key in ("plain", "for_tpu")]
        cells = [
            row["model"],
            str(len(row["plain"])),
            *(f"{mean:.4f}" for mean in means),
            f"{row['difference']:+.4f}",
        ]
        cells += [f"{row[key]:.4f}" for key in ("standard_error", "spread")]
        yield f"| {' | '.join(cells)} |"


def _layers(is_wanted: Callable[[str], bool]) -> Iterator[str]:
    """Yield a row for each layer and shape, with a pair of columns for each slice."""
    rows = [row for name in _LAYERS for row in result(f"layers-{name}-jax.txt")["rows"] if is_wanted(row["layer"])]
    targets = list(dict.fromkeys(row["target"] for row in rows))
    yield f"| layer | shape | {' | '.join(f'{target}: time | HBM' for target in targets)} |"
    yield f"| --- | --- | {' | '.join(['---:'] * 2 * len(targets))} |"
    cases: dict[tuple[str, str], dict[str, str]] = {}
    for row in rows:
        ours, stock = row["ours"], row["stock"]
        cell = f"{1e3 * ours['seconds']:.3g} ms"
        if stock is None:
            cell = f"{cell}, no estimate of Keras's | "
        else:
            time, size = (ours[key] / stock[key] for key in ("seconds", "hbm_bytes"))
            cell = f"{cell}, {_factor(time)} | {_factor(size)}"
        cases.setdefault((row["layer"], row["shape"]), {})[row["target"]] = cell
    for (layer, shape), cells in cases.items():
        yield f"| {layer} | {shape} | {' | '.join(cells[target] for target in targets)} |"


def _factor(number: float) -> str:
    return f"{number:.2f}" if number >= 0.1 else f"{number:.1g}"


_LAYERS = (
    "normalisations",
    "biases",
    "embeddings",
    "images",
    "augmentation",
    "rotation",
    "mixing",
    "stems",
    "patches",
    "outputs",
    "widths",
)
_NOT_SHIPPED = ("SpaceToDepthConv2D", "Dense(", "widths of 128")


def layers() -> Iterator[str]:
    """Yield a row for each shape of a layer that is shipped."""
    return _layers(lambda name: not name.startswith(_NOT_SHIPPED))


def layers_not_shipped() -> Iterator[str]:
    """Yield a row for each shape of what was tried and is not shipped."""
    return _layers(lambda name: name.startswith(_NOT_SHIPPED))


def break_even() -> Iterator[str]:
    """Yield a row for each slice: up to how many words a one-hot product costs no more than a lookup."""
    yield "| slice | if the scatter were free | if it costs what is estimated of it alone |"
    yield "| --- | ---: | ---: |"
    scatter = {(row["target"], row["vocabulary"]): row["seconds"] for row in result("embedding_scatter.txt")["rows"]}
    more: dict[str, dict[int, float]] = {}
    for row in result("layers-embeddings-jax.txt")["rows"]:
        vocabulary = int(row["shape"].split(" ")[0].replace(",", ""))
        more.setdefault(row["target"], {})[vocabulary] = row["ours"]["seconds"] - row["stock"]["seconds"]
    for target, by_vocabulary in more.items():
        counted = {size: seconds - scatter[target, size] for size, seconds in by_vocabulary.items()}
        free, estimated = (round(_zero_of(points), -2) for points in (by_vocabulary, counted))
        yield f"| {target} | {free:,.0f} words | {estimated:,.0f} words |"


def _zero_of(points: dict[int, float]) -> float:
    """Return where a line through neighbouring points crosses zero for the first time."""
    places = sorted(points)
    for low, high in itertools.pairwise(places):
        if points[low] <= 0 < points[high]:
            return low + (high - low) * points[low] / (points[low] - points[high])
    raise ValueError(f"no crossing in {points}")


def callback_overhead() -> Iterator[str]:
    """Yield a row for each set of callbacks: the time of a step, and of a short fit, by that without callbacks."""
    yield "| callbacks | a step on TensorFlow | a step on JAX | a fit of 200 steps on TensorFlow | on JAX |"
    yield "| --- | --- | --- | --- | --- |"
    found = [result(f"callback_overhead-{backend}-cpu-2-cores-with-ledger.txt") for backend in ("tf", "jax")]
    for name in found[0]["steps"]:
        rows = [one[what][name] for what in ("steps", "fits") for one in found]
        cells = [f"{row['ratio']:.3f} ({row['interval'][0]:.3f} to {row['interval'][1]:.3f})" for row in rows]
        yield f"| {'none, against none' if name == 'nothing' else name} | {' | '.join(cells)} |"


def keras_tests() -> Iterator[str]:
    """Yield a row for each backend and each way in which Keras's own tests run."""
    yield "| backend | Keras's tests run | passed | failed | of these not in Keras as it is | skipped |"
    yield "| --- | --- | ---: | ---: | ---: | ---: |"
    for backend, file in (("JAX", "keras-tests-jax.txt"), ("TensorFlow", "keras-tests-tensorflow.txt")):
        for row in result(file)["rows"]:
            new = f"{row['explained'] + row['unexplained']}, {row['explained']} explained"
            cells = row["mode"], row["passed"], row["failed"], new, row["skipped"]
            yield f"| {backend} | {' | '.join(map(str, cells))} |"


def version_range() -> Iterator[str]:
    """Yield a row for each framework, from what the package itself goes by."""
    text = (ROOT / "keras_tpu_ext" / "machine" / "versions.py").read_text(encoding="utf-8")
    values = {
        node.targets[0].id: ast.literal_eval(node.value)
        for node in ast.parse(text).body
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) in ("OLDEST", "NEWEST_TESTED")
    }
    yield "| | oldest | newest tested |"
    yield "| --- | --- | --- |"
    names = {"keras": "Keras 3", "tensorflow": "TensorFlow", "jax": "JAX"}
    yield f"| Keras 2 | TensorFlow 2.15 | tf-keras {values['NEWEST_TESTED']['tf_keras']} |"
    for name, oldest in values["OLDEST"].items():
        yield f"| {names[name]} | {oldest} | {values['NEWEST_TESTED'][name]} |"


def versions() -> Iterator[str]:
    """Yield a row for each environment, as `make versions` found it."""
    yield "| environment | versions | what came of it |"
    yield "| --- | --- | --- |"
    for row in json.loads((ROOT / "benchmarks" / "results" / "versions.json").read_text())["rows"]:
        title = row["title"].rstrip(".") + (" (may fail)" if row["may_fail"] else "")
        yield f"| {title} | {row['versions']} | {row['outcome']} |"


def _programs() -> dict[str, dict[str, Any]]:
    """Return what came of each program, by its place and backend."""
    by_program: dict[str, dict[str, Any]] = {}
    for row in json.loads((ROOT / "benchmarks" / "results" / "programs.json").read_text())["rows"]:
        by_program.setdefault(row["program"], {})[row["backend"]] = row
    return by_program


def programs() -> Iterator[str]:
    """Yield a row for each program that others wrote: how far the scope of eight is off one device."""
    yield "| program | TensorFlow | JAX | made smaller |"
    yield "| --- | --- | --- | --- |"
    for name, rows in _programs().items():
        smaller = next(iter(rows.values()))["smaller"]
        cells = [_off(rows.get(backend)) for backend in ("tensorflow", "jax")]
        yield f"| {' | '.join([f'`{name}`', *cells, _smaller(smaller)])} |"


def _off(row: dict[str, Any] | None) -> str:
    if row is None:
        return ""
    if "error" in row:
        return row["error"].replace("|", "\\|")
    text = f"{row['off']:.1e}" + (f", rounding alone {row['noise']:.1e}" if "noise" in row else "")
    return text if row["equal"] else f"**{text}**"


def _smaller(smaller: dict[str, Any]) -> str:
    return ", ".join(f"`{name} {'→' if name.isdigit() else '='} {value}`" for name, value in smaller.items())


def programs_equal() -> Iterator[str]:
    """Yield how many programs are equal wherever they are meant to run, and of which commit they are."""
    told = json.loads((ROOT / "benchmarks" / "results" / "programs.json").read_text())
    by_program = _programs()
    equal = sum(all(row["equal"] for row in rows.values()) for rows in by_program.values())
    both = sum(len(rows) == 2 for rows in by_program.values())
    yield f"{equal} of {len(by_program)} programs, {both} of them on both backends, give the numbers of one device."
    yield f"The programs are those of keras-team/keras at commit {told['commit'][:10]}."


def programs_same() -> Iterator[str]:
    """Yield whether what programs compile on JAX is what preflight lowers, and which programs are left out."""
    rows = json.loads((ROOT / "benchmarks" / "results" / "same_programs.json").read_text())["rows"]
    same = [row for row in rows if row["same"] and not row["others"]]
    left_out = sorted(set(_programs()) - {row["program"] for row in rows})
    compiled = sum(row["same"] for row in rows)
    yield f"{len(same)} of {len(rows)} programs, with {compiled} compiled ones in all, are equal."
    yield ""
    for row in rows:
        if row["not_compiled"]:
            layers = ", ".join(f"`{layer}`" for layer in row["not_compiled"])
            yield f"- Keras does not compile `{Path(row['program']).name}`, because of {layers}."
    names = ", ".join(f"`{Path(name).name}`" for name in left_out)
    yield f"- For TensorFlow alone, and so left out: {names}."


def auto_resume() -> Iterator[str]:
    """Yield a row for each device: what it costs to save every 100 steps."""
    yield "| device | step | saved | costs, every 100 steps | Python stands still | writing beside it |"
    yield "| --- | ---: | ---: | ---: | ---: | ---: |"
    for name in ("h100",):
        row = result(f"auto_resume-jax-{name}.txt")
        median, low, high = (f"{100 * cost:.1f} %" for cost in row["costs"])
        step, size = f"{1e3 * row['step_s']:.1f} ms", f"{row['bytes'] / 1e6:.0f} MB"
        times = [f"{row[key]:.3f} s" for key in ("stood_still_s", "wrote_s")]
        yield f"| {row['device']} | {step} | {size} | {median} ({low} to {high}) | {' | '.join(times)} |"


def patches() -> Iterator[str]:
    """Yield a row for each attribute of Keras, TensorFlow and JAX that this package replaces."""
    table = runpy.run_path(str(ROOT / "keras_tpu_ext" / "_runtime" / "common" / "patch_table.py"))
    for lifetime, meaning in table["LIFETIMES"].items():
        yield f"- `{lifetime}`: {meaning}"
    yield ""
    yield "| attribute | reason | lifetime | owner |"
    yield "| --- | --- | --- | --- |"
    for row, rows in itertools.groupby(table["PATCHED"], lambda row: row[1:]):
        reason, lifetime, owner = row
        names = ", ".join(f"`{one.name}`" for one in rows)
        yield f"| {names} | {reason} | {lifetime} | `{owner}` |"


def _names(table: str) -> Any:
    """Return a table of old names."""
    return _module(f"tools.migrate.tables.{table}")


def _module(name: str) -> Any:
    """Return a module of the package, which is not imported for it, since that would import Keras."""
    package = types.ModuleType("keras_tpu_ext")
    package.__path__ = [str(ROOT / "keras_tpu_ext")]
    sys.modules.setdefault("keras_tpu_ext", package)
    return importlib.import_module(f"keras_tpu_ext.{name}")


def dropin_tpu() -> Iterator[str]:
    """Yield a row for each name of TensorFlow for TPUs and strategies."""
    tpu = _names("tpu")
    yield "| TensorFlow | here |"
    yield "| --- | --- |"
    for name, new in [
        *tpu.TPU.items(),
        *((f"strategy.{key}", value) for key, value in tpu.STRATEGY_ATTRIBUTES.items()),
    ]:
        yield f"| `{name}` | {_code(new)} |"


def _code(text: str) -> str:
    return text if " " in text.partition("(")[0] else f"`{text}`"


def dropin_tensorflow() -> Iterator[str]:
    """Yield a row for each function of TensorFlow."""
    yield from _functions(_names("tensorflow").TENSORFLOW, "tf.")


def dropin_backend() -> Iterator[str]:
    """Yield a row for each function of the old backend."""
    backend = _names("backend")
    anywhere = {name: f"={new}" for name, new in backend.ANYWHERE.items()}
    yield from _functions({**backend.BACKEND, **anywhere}, "K.")


def _functions(rows: dict[str, str], prefix: str) -> Iterator[str]:
    yield "| old | in a modern program |"
    yield "| --- | --- |"
    for name, row in sorted(rows.items()):
        forms = [form.rpartition("->")[2].rpartition(": ")[2].strip() for form in re.split(r"(?:^| )\| ", row)]
        if told := [f"`{form.removeprefix('=')}`" for form in forms if form]:
            yield f"| `{prefix}{name}` | {' or '.join(told).replace('|', chr(92) + '|')} |"
    yield ""
    others = ", ".join(f"`{prefix}{name}`" for name, row in sorted(rows.items()) if not row)
    yield f"On the drop-in only: {others or f'all others of `{prefix}*`'}."


def dropin_arguments() -> Iterator[str]:
    """Yield a row for each old argument and method."""
    table = _names("old_arguments")
    yield "| where | old | today |"
    yield "| --- | --- | --- |"
    for where, arguments in [
        *table.ARGUMENTS.items(),
        *((f".{key}", value) for key, value in table.METHOD_ARGUMENTS.items()),
    ]:
        for old, new in arguments.items():
            told = {"-": "left out", "?": "the drop-in"}.get(new, f"`{new}=`")
            if new != old:
                yield f"| `{where}` | `{old}=` | {told} |"
    for old, row in table.METHODS.items():
        yield f"| models and metrics | `.{old}()` | {f'`.{row.split()[0]}()`' if row else 'the drop-in'} |"


def dropin_modules() -> Iterator[str]:
    """Yield a row for each module of today: the old ones whose names it has."""
    table = _names("old_modules")
    yield "| today | old modules and names |"
    yield "| --- | --- |"
    olds: dict[str, list[str]] = {}
    for old, new in {**table.OLD_MODULES, **table.OLD_NAMES}.items():
        olds.setdefault(new, []).append(old)
    for new, names in sorted(olds.items()):
        told = f"`{new}`" if not new.startswith(("keras_tpu_ext.", "keras.src.", "keras._")) else "the drop-in"
        yield f"| {told} | {', '.join(f'`{name}`' for name in names)} |"


def dropin_stand_ins() -> Iterator[str]:
    """Yield a row for each module that the drop-in stands in for."""
    yield "| module | names |"
    yield "| --- | --- |"
    for module, names in _names("stand_ins").STAND_INS.items():
        if names:
            yield f"| `{module}` | {', '.join(f'`{name}`' for name in sorted(names))} |"


def dropin_out_of_reach() -> Iterator[str]:
    """Yield a row for each name that cannot run on JAX."""
    table = _names("out_of_reach")
    modules = {name: f"{write} ({why})" for name, (why, write) in _names("old_modules").OUT_OF_REACH.items()}
    yield "| name | write |"
    yield "| --- | --- |"
    for name, write in {
        **table.OUT_OF_REACH,
        **{f"strategy.{key}": value for key, value in table.LOOPS.items()},
        **modules,
    }.items():
        yield f"| `{name}` | {write} |"


TABLES = {
    table.__name__: table
    for table in (
        install,
        install_with,
        places,
        patches,
        platform_places,
        attention_kernel,
        published_steps,
        large_decoders,
        gemma_layouts,
        corrections,
        held_out,
        published_rates,
        published_runs,
        tpu_program,
        memory_limit,
        resnet50_layers,
        decoder_rates,
        decoder_parts,
        transformers,
        for_tpu_trainings,
        tried_for_transformers,
        layers,
        layers_not_shipped,
        break_even,
        callback_overhead,
        keras_tests,
        version_range,
        versions,
        programs,
        programs_equal,
        programs_same,
        auto_resume,
        dropin_tpu,
        dropin_tensorflow,
        dropin_backend,
        dropin_arguments,
        dropin_modules,
        dropin_stand_ins,
        dropin_out_of_reach,
    )
}


def main() -> int:
    """Write the tables, or check them."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="write nothing, and exit with 1 where one is another")
    options = parser.parse_args()
    others = []
    for path in [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]:
        text = path.read_text()
        new = _TABLE.sub(lambda found: found[1] + "\n".join(TABLES[found[2]]()) + "\n" + found[3], text)
        if new != text:
            others.append(path.name)
            if not options.check:
                path.write_text(new)
    if options.check and others:
        print(f"The tables of {', '.join(others)} are not those of benchmarks/results.", file=sys.stderr)
        print("Write: python benchmarks/docs_tables.py", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
