"""A loop over batches for probes, whose clock only the test moves."""

from keras_tpu_ext._runtime.common.executions import BatchesAhead, Stage


class Fit:
    """A loop over batches: `host` seconds to make one, of which `ready` are in a buffer, `compute` to train on it."""

    def __init__(self, host, compute, batches=100, steps=1, ready=0, gives_ahead=True):
        self.host, self.compute, self.steps, self.ready = host, compute, steps, ready
        self.left = list(range(batches))
        self.trained, self.waited_for = [], []
        self.now = 0.0
        self.gives_ahead = gives_ahead

    def clock(self):
        return self.now

    def next(self):
        if not self.left:
            raise StopIteration
        if self.ready:
            self.ready -= 1
        else:
            self.now += self.host
        return self.left.pop(0)

    def run(self, take):
        some = []
        for _ in range(self.steps):
            try:
                some.append(take())
            except (StopIteration, IndexError):
                break
            self.now += self.compute
        if not some:
            raise StopIteration
        self.trained += some
        return some[-1]

    def execution(self):
        return FakeExecution(self)


class FakeExecution:
    reads_in_graph = True

    def __init__(self, fit):
        self.fit = fit
        self.steps = fit.steps

    def run(self):
        return self.fit.run(self.fit.next)

    def run_on(self, ahead):
        return self.fit.run(lambda: ahead.source.pop(0))

    def take_ahead(self, executions, most_bytes, clock):
        if not self.fit.gives_ahead:
            return None
        items, seconds = [], []
        for _ in range(executions * self.steps):
            begin = clock()
            try:
                items.append(self.fit.next())
            except StopIteration:
                break
            seconds.append(clock() - begin)
        return BatchesAhead(
            items,
            self.fit,
            -(-len(items) // self.steps),
            tuple(seconds),
            (1,) * len(items),
            min(self.steps, len(items)),
        )

    def goes_on_after(self, ahead):
        return ahead.taken_from is self.fit

    def wait_for(self, result):
        self.fit.waited_for.append(result)

    def stages(self):
        return [Stage("Map", 0.5)]

    def is_settled(self):
        return True

    def run_reading(self, clock, note):
        if self.reads_in_graph:
            return self.run()

        def take():
            begun = clock()
            try:
                return self.fit.next()
            finally:
                note(clock() - begun)

        return self.fit.run(take)

    def output_of(self, result):
        return result

    def is_ready(self, output):
        return True


class HostReads(FakeExecution):
    """An execution like those on JAX: the host reads, and devices compute `device` seconds beside it."""

    reads_in_graph = False

    def run_reading(self, clock, note):
        result = super().run_reading(clock, note)
        self.fit.ready_at = max(getattr(self.fit, "ready_at", 0.0), self.fit.now) + self.fit.device
        return result, self.fit.ready_at

    def output_of(self, result):
        return result[1]

    def is_ready(self, output):
        return self.fit.now >= output

    def wait_for(self, result):
        self.fit.now = max(self.fit.now, result)
