"""The batches of one `fit`, read so that another process can continue in the middle of them.

Keras reads data in passes: one per epoch, or one over several epochs if `steps_per_epoch` is given. A pass is resumed
from the state of its iterator, from an index, or by reading it again up to that point. Random draws on the way are
repeated, because the states of Python's and NumPy's generators are saved.
"""

from __future__ import annotations

import contextlib
import itertools
import math
import time
from collections.abc import Callable, Iterator

from keras_tpu_ext._runtime.common.random_state import fingerprint_of_random_state, random_state, set_random_state
from keras_tpu_ext._runtime.common.types import IteratorState, Nest, RandomState
from keras_tpu_ext._runtime.common.values import Place
from keras_tpu_ext._runtime.compat import tree
from keras_tpu_ext._runtime.training.batch_source import CannotSaveError, IndexedBatches, Source
from keras_tpu_ext.errors import CheckpointError


class ResumablePasses:
    """The batches of one `fit` that may start in the middle of the data.

    Args:
        reads_ahead: Whether batches are read in another thread, before the step that they are for.
        spans_epochs: Whether a pass continues in the next epoch, until the data ends.
        begins_before_epoch: Whether Keras begins a pass just before it announces the pass's epoch.
    """

    def __init__(self, *, reads_ahead: bool, spans_epochs: bool, begins_before_epoch: bool = False) -> None:
        self.reads_ahead = reads_ahead
        self.begins_before_epoch = begins_before_epoch
        self.spans_epochs = spans_epochs
        self.indexed: IndexedBatches | None = None  # the batches, if they are those of a `PyDataset`
        self.resumed: Place | None = None  # where the next pass begins, if not at its start
        self.has_begun = False  # whether an epoch has; before that, Keras reads a batch to build the model
        self.has_length = False  # whether Keras asks for no more batches than there are
        self.is_between_epochs = False  # whether Keras is beginning a pass that it will not read
        self.seed: int | None = None  # of shuffles without their own; `None` if they have one, or need none
        self.draws = False  # whether reading a batch draws from Python's or NumPy's global random generators
        self.random: RandomState = None  # the states of these with which the epoch begins; `None` to leave them
        self._pass: _Pass | None = None
        self._next = Place(0, 0, None, None, None)  # the start of the next pass
        self._first_batch = self._trained = self._trained_before = 0
        # When a state was last taken from which the next passes are known, and how long that took.
        self.last_take, self.seconds_of_take = -math.inf, 0.0
        self.is_not_saved = False  # whether a position is restored by reading the whole pass again
        self.not_exact = ""  # why the data may continue otherwise, or with other random numbers
        self.read_again = 0  # number of batches that were read again to return to the saved position
        self.seconds = 0.0  # how long that took
        self.refusal: CheckpointError | None = None  # why `fit` cannot go on, after an error in the thread that reads

    def refuse(self, error: CheckpointError) -> None:
        """Raise an error that ends `fit`, from whichever thread reads the batches."""
        self.refusal = error
        raise error

    def resume(self, place: Place, batch: int, restore: Callable[[], object] = lambda: None) -> None:
        """Let the first epoch, which is about to begin, start where another process stopped.

        Args:
            place: The position in the data.
            batch: The number of batches of the epoch that have been trained on.
            restore: Restores the attributes of a `PyDataset`, before the pass begins and, if they were saved after
                the hook at the start of an epoch, again after that hook.
        """
        self._first_batch, self.draws = batch, place.draws
        if self.indexed is not None:
            self.indexed.restore, self.indexed.is_in_epoch = restore, batch > 0
        if place.batch or place.passes or place.unread or place.random_at_start is not None:
            self.resumed = place
        if not place.batch and not self.begins_before_epoch:
            self.random = place.random

    def take_first_batch(self) -> tuple[int, int]:
        """Return the index of the batch at which an epoch begins, and its index in a pass that begins there."""
        batch, self._first_batch = self._first_batch, 0
        return batch, 0 if self.resumed is None else self.resumed.batch

    def begin_epoch(self, trained: int) -> None:
        """Note that an epoch begins, or continues, after `trained` batches in total."""
        self._trained = self._trained_before = trained
        self.has_begun = True
        if self.random is not None:
            set_random_state(self.random)
            self.random = None
        if not self.spans_epochs and not self.begins_before_epoch:
            self._end_pass()

    def end_epochs(self, trained: int) -> None:
        """Note that the last epoch has ended after `trained` batches in total; a later one begins with a new pass."""
        self._trained = self._trained_before = trained
        if not self.spans_epochs:
            self._end_pass()

    def begin_pass(self, source: Source, *, at_once: bool = False) -> Iterator[Nest]:
        """Return an iterator over the batches of the next pass.

        Args:
            source: Gives the batches.
            at_once: Whether to open the source now rather than when the first batch is requested.
        """
        self._end_pass()
        resumed, self.resumed = self.resumed, None
        self._pass = _Pass(self, source, resumed or self._next, is_resumed=resumed is not None)
        if at_once:
            self._pass.open()
        return self._pass.read()

    @contextlib.contextmanager
    def between_epochs(self, is_unread: bool) -> Iterator[None]:
        """Enclose the end of an epoch, where Keras begins a pass that it may leave unread."""
        self.is_between_epochs = is_unread
        try:
            yield
        finally:
            self.is_between_epochs = False

    def leave_unread(self, source: Source) -> None:
        """Create the iterator of a pass that is not read, except when resuming, which creates it anyway."""
        if self.resumed is not None:
            return
        source.make_iterators(1)
        self._end_pass()
        self._next = self._next._replace(unread=self._next.unread + 1)

    def note_trained(self, batches: int) -> None:
        """Note how many batches in total the model has trained on, just before it continues."""
        self._trained = batches
        if self._pass is None:
            return
        if self._pass.first is None:
            self._pass.first = self._trained_before - self._pass.resumed_at
        if self.indexed is not None:  # which drops the earlier states
            self.indexed.random_before(batches - self._pass.first)

    def place(self, *, at_once: bool) -> Place | None:
        """Return the position after the batches that were trained on; `None` if it is not known yet, or at the end.

        If batches are read ahead, the iterator's state is the one after a later batch. It is used once the model has
        trained on that batch; with `at_once`, the state after an earlier batch is used, and many may be read again.
        """
        if self.resumed is not None:
            return self.resumed  # nothing is read yet
        trained = 0 if self._pass is None or self._pass.first is None else self._trained - self._pass.first
        if self._pass is None or not trained:
            begin = self._next if self._pass is None else self._pass.begin
            is_drawn = self._pass is not None and self._pass.is_open and not self.begins_before_epoch
            if self.indexed is not None and is_drawn:
                begin = begin._replace(iterator=self.indexed.order)
            if self._pass is None and self.begins_before_epoch and not begin.passes:
                begin = begin._replace(random_at_start=random_state())  # after the last epoch: another begins so
            elif not (self.draws and self.begins_before_epoch):
                begin = begin._replace(random=random_state())
            return begin._replace(draws=self.draws)
        place = self._pass.place(trained, ahead=self.reads_ahead, at_once=at_once)
        return None if place is None else place._replace(draws=self.draws)

    def _end_pass(self) -> None:
        ended, self._pass = self._pass, None
        if ended is not None and ended.is_open:
            self._next = ended.begin_of_next()


class _Pass:
    """One pass over the data.

    Args:
        data: The batches of the `fit`.
        source: Gives the batches of the pass.
        begin: Where the pass begins.
        is_resumed: Whether another process recorded `begin`.
    """

    def __init__(self, data: ResumablePasses, source: Source, begin: Place, *, is_resumed: bool) -> None:
        self._data = data
        self._source = source
        self.begin = begin
        self._is_resumed = is_resumed
        # Number of batches in total that the model had trained on before this pass; `None` until it is known.
        self.first: int | None = None
        self.resumed_at = begin.batch  # the batch at which it began
        self._iterator: Iterator[Nest] = iter(())
        self.is_open = False  # whether it has begun: Keras leaves some passes unread
        self._next: list[Nest] = []  # read but not yielded yet
        self._read = 0
        self._rows = begin.rows
        self._random_at_start: RandomState = None
        self._known = [begin]  # positions to start from, in the order of the batches
        self._taken: int | None = None  # batch of the last state that no save has used
        self._is_wanted = False

    def begin_of_next(self) -> Place:
        """Return the start of the pass after this one, once the model has trained on all of this one."""
        if not self._source.depends_on_earlier:
            return Place(0, 0, None, None, None)
        last = self._known[-1]
        if self._data.is_not_saved:  # reading all passes again may take as long as training
            return Place(0, 0, None, None, None, unread=last.unread + last.passes + 1)
        return last._replace(batch=0, rows=0, passes=last.passes + 1)

    def place(self, trained: int, *, ahead: bool, at_once: bool) -> Place | None:
        """Return the position after the batches that were trained on; see `ResumablePasses.place`."""
        ahead = ahead or self._read != trained
        if not ahead or self._data.is_not_saved or self._source.begins_anywhere:
            self._taken = self._take(trained)
        if self._taken is None or self._taken > trained:
            self._is_wanted = self._taken is None
            if not at_once:
                return None
        else:
            self._taken = None
        if not self._has_more(trained, ahead=ahead):
            return None
        place = self._newest(trained)
        if not self._data.draws:
            place = place._replace(random=random_state())  # what callbacks have drawn since
        return place._replace(batch=trained, rows=self._rows)

    def _newest(self, trained: int) -> Place:
        """Return the last position to start from that is not after a batch; forget the earlier ones."""
        known = [place for place in self._known if place.passes or place.read <= trained]
        self._known = self._known[len(known) - 1 :]
        return known[-1]

    def _has_more(self, trained: int, *, ahead: bool) -> bool:
        """Return whether there is another batch: if data has no length, Keras asks once too often."""
        if self._data.has_length or self._read > trained:
            return True
        if ahead:
            return False  # there may be one, but this thread cannot read it
        if not self._next:
            self._next = list(itertools.islice(self._iterator, 1))
        return bool(self._next)

    def read(self) -> Iterator[Nest]:
        """Yield the batches."""
        if not self.is_open:
            self.open()
        while True:
            if self._is_wanted and self._read:
                self._is_wanted = False
                self._taken = self._take(self._read)
            before = fingerprint_of_random_state()
            try:
                batch = self._next.pop() if self._next else next(self._iterator)
            except StopIteration:
                if self._is_resumed and self._read == self.resumed_at:
                    self._data.refuse(_ended(self._read))
                return
            self._data.draws |= fingerprint_of_random_state() != before
            self._read += 1
            self._rows = max(self._rows, _rows_of(batch))
            if self._read == self.resumed_at + 1 and self._source.depends_on_earlier:
                self._take_early()
            yield batch

    def open(self) -> None:
        """Ask the source for the batches."""
        self.is_open = True
        if self._is_resumed:
            begun = time.monotonic()
            try:
                self._data.read_again = self._resume()
            except CheckpointError as error:
                self._data.refuse(error)
            self._data.seconds = time.monotonic() - begun
            return
        self._random_at_start = random_state()
        if not self.begin.passes:
            self.begin = self.begin._replace(random_at_start=self._random_at_start)
            self._known = [self.begin]
        self._iterator, _ = self._source.open()

    def _resume(self) -> int:
        """Advance to where another process stopped, and return how many batches had to be read for it."""
        begin, now = self.begin, random_state()
        if begin.random_at_start is not None:
            set_random_state(begin.random_at_start)
        if not begin.passes:
            self._source.make_iterators(begin.unread)
        self._iterator, first = self._source.open(begin.read, begin.iterator)
        read = self._skip_all(begin.read - first, first)
        if begin.random is not None:
            set_random_state(begin.random)
        if begin.passes:
            read += self._skip()
            for _ in range(begin.passes - 1):
                self._iterator, _ = self._source.open()
                read += self._skip()
            self._source.make_iterators(begin.unread)
            self._iterator, _ = self._source.open()
        self._random_at_start = random_state() if begin.passes else begin.random_at_start
        first = 0 if begin.passes else begin.read
        read += self._skip_all(begin.batch - first, first)
        if self._data.begins_before_epoch:  # callbacks may draw numbers until then
            self._data.random = None if self._data.draws else random_state()
        elif not begin.batch:
            set_random_state(now)
        self._read = begin.batch
        return read

    def _skip(self, batches: int | None = None) -> int:
        """Read up to `batches` batches, or all there are, and return how many there were."""
        return sum(1 for _ in itertools.islice(self._iterator, batches))

    def _skip_all(self, batches: int, first: int) -> int:
        """Read `batches` batches, from number `first` on, and return how many these are."""
        read = self._skip(batches)
        if read < batches:
            raise _ended(first + read)
        return read

    def _take_early(self) -> None:
        """Take a state at the start of a pass, unless there is one from which little has to be read again."""
        if time.monotonic() - self._data.last_take > _READ_AGAIN * self._data.seconds_of_take:
            self._take(self._read)

    def _take(self, read: int) -> int:
        """Take the state of the iterator, while nobody reads from it.

        Returns:
            The number of batches after which the state was taken.
        """
        begun = time.monotonic()
        now = read if self._source.begins_anywhere else self._read
        ahead = self._data.draws and self._data.reads_ahead  # then it is unknown what was drawn for which batch
        random = self._source.random_before(now) if ahead else random_state()
        place = Place(0, now, None, random, self._random_at_start, self._rows)
        state, is_whole = self._save()
        if self._data.is_not_saved:
            place = place._replace(unread=self.begin.unread)
            self._known.append(place if self._read == read else place._replace(read=read, random=None))
            return read
        if is_whole:
            self._known.append(place._replace(iterator=state))
            self._data.last_take = time.monotonic()
            self._data.seconds_of_take = self._data.last_take - begun
        return now

    def _save(self) -> tuple[IteratorState, bool]:
        if not self._data.is_not_saved:  # TensorFlow logs a complaint for each attempt
            try:
                return self._source.save()
            except CannotSaveError as error:
                self._data.is_not_saved = True
                self._data.not_exact = str(error) if self._source.depends_on_earlier else ""
            except OSError:  # the previous state works too: more is read again
                pass
        return None, False


def _ended(batches: int) -> CheckpointError:
    return CheckpointError(f"the data have ended after {batches:,} batches, and more were there when it was saved")


# After an interruption, reading again may take this many times as long as taking a state of the data.
_READ_AGAIN = 20


def _rows_of(batch: Nest) -> int:
    shapes = [leaf.shape for leaf in tree.flatten(batch) if len(getattr(leaf, "shape", ()))]
    return int(shapes[0][0] or 0) if shapes else 0
