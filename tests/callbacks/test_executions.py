from keras_tpu_ext.callbacks._executions import EpochExecutions, Execution


def play(hooks, together=False):
    epoch = EpochExecutions()
    done, begins = [], []
    for name, batch, now in hooks:
        if name == "end":
            epoch.end(batch, now)
            continue
        begins.append((batch, now))
        if not together:
            done += epoch.begin(begins)
            begins = []
    done += epoch.begin(begins)
    return epoch, done + epoch.finish()


def test_an_execution_lasts_until_the_next_begins_and_the_last_until_its_end():
    epoch, executions = play(
        [("begin", 0, 1), ("end", 0, 2), ("begin", 1, 3), ("end", 1, 5), ("begin", 2, 6), ("end", 2, 9)]
    )
    assert executions == [Execution(0, 1, 2, 3), Execution(1, 1, 3, 6), Execution(2, 1, 3, 9)]
    assert (epoch.started, epoch.ended, epoch.last_batch, epoch.last_begin) == (1, 9, 2, 2)


def test_the_batch_index_jumps_by_steps_per_execution():
    _, executions = play([("begin", 0, 1), ("end", 2, 2), ("begin", 3, 3), ("end", 5, 5)])
    assert executions == [Execution(0, 3, 2, 3), Execution(3, 3, 2, 5)]


def test_begins_may_be_noted_together():
    hooks = [("begin", 0, 1), ("end", 0, 2), ("begin", 1, 3), ("end", 1, 5), ("begin", 2, 6), ("end", 2, 9)]
    assert play(hooks, together=True)[1] == play(hooks)[1]


def test_a_begin_without_an_end_is_no_execution():
    epoch, executions = play([("begin", 0, 1), ("end", 2, 2), ("begin", 3, 3), ("end", 5, 5), ("begin", 6, 100)])
    assert executions == [Execution(0, 3, 2, 3), Execution(3, 3, 2, 5)]
    assert epoch.last_begin == 3


def test_late_and_disordered_ends_change_nothing():
    _, executions = play(
        [("begin", 0, 1), ("begin", 1, 3), ("begin", 2, 6), ("end", 2, 9), ("end", 0, 10), ("end", 1, 11)]
    )
    assert executions == [Execution(0, 1, 2, 3), Execution(1, 1, 3, 6), Execution(2, 1, 3, 9)]


def test_an_epoch_without_batches_has_no_executions():
    assert play([])[1] == []
    assert play([("begin", 0, 1)])[1] == []
