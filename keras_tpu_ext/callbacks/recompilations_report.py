"""What `Recompilations` found in a `fit`."""

from __future__ import annotations

import dataclasses

from keras_tpu_ext._runtime.common.executions import CacheUse, Step
from keras_tpu_ext.output.display import HtmlSentence, counted, three_digits
from keras_tpu_ext.output.report import Report

_WORDS = {"train": "train step", "test": "evaluate step"}


@dataclasses.dataclass(frozen=True)
class Compilation:
    """A time that a step was traced and compiled.

    Attributes:
        step: `"train"` or `"test"`.
        epoch: Number of the epoch, from 0.
        batch: Index of the first batch of the execution that compiled.
        seconds: How long it took; see `Recompilations`.
        reason: What changed since the step was compiled before; empty for the first time.
        cure: What to write instead; empty for the first time.

    Example:
        ```python
        from keras_tpu_ext.callbacks import Compilation

        print(Compilation("train", 0, 390, 3.5, "x, y: rows 128 to 37", "Give every batch 128 rows"))
        ```
    """

    step: Step
    epoch: int
    batch: int
    seconds: float
    reason: str = ""
    cure: str = ""

    def __str__(self) -> str:
        again = "again " if self.reason else ""
        text = f"the {_WORDS[self.step]} was compiled {again}in epoch {self.epoch + 1} at batch {self.batch}"
        text = f"{text}, in {three_digits(self.seconds)} s"
        return f"{text}: {self.reason}. {self.cure}" if self.reason else text


@dataclasses.dataclass(frozen=True)
class RecompilationsReport(Report, HtmlSentence):
    """How often the steps of a `fit` were compiled, how long it took, and why.

    Attributes:
        compilations: Each time that a step was compiled, the first time included.
        cache_hits: Number of programs that were read from a cache, such as `strategy_scope(compile_cache=...)`.
        cache_misses: Number of programs that were not in it.
        cache_seconds_saved: How long it once took to compile what was read, less the time to read it.

    Example:
        ```python
        from keras_tpu_ext.callbacks import Compilation, RecompilationsReport

        # As Recompilations().report() may be after a training whose last batch is short.
        first = Compilation("train", 0, 0, 4.0)
        again = Compilation("train", 0, 390, 3.5, "x, y: rows 128 to 37", "Give every batch 128 rows")
        report = RecompilationsReport((first, again))
        print(report.count, report.seconds, report.ok)  # 1 3.5 False
        print(report)
        ```
    """

    compilations: tuple[Compilation, ...]
    cache_hits: int = 0
    cache_misses: int = 0
    cache_seconds_saved: float = 0.0

    _derived = ("count", "seconds")

    @property
    def recompilations(self) -> tuple[Compilation, ...]:
        """Each time that a step was compiled, but for the first time of each."""
        return tuple(one for one in self.compilations if one.reason)

    @property
    def count(self) -> int:
        """How often a step was compiled again."""
        return len(self.recompilations)

    @property
    def seconds(self) -> float:
        """How long it took to compile again."""
        return sum(one.seconds for one in self.recompilations)

    @property
    def ok(self) -> bool:
        """Whether nothing was compiled again."""
        return not self.count

    def __str__(self) -> str:
        all_seconds = sum(one.seconds for one in self.compilations)
        lines = [
            f"{counted(len(self.compilations), 'compilation')} in {three_digits(all_seconds)} s, "
            f"{self.count} of them again, in {three_digits(self.seconds)} s",
            *(f"- {one}" for one in self.compilations),
        ]
        if self.cache_hits or self.cache_misses:
            use = CacheUse(self.cache_hits, self.cache_misses, self.cache_seconds_saved)
            lines.append(f"compile cache: {use}")
        return "\n".join(lines)
