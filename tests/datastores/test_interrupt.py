"""Ctrl-C that waits for the end of a block."""

import os
import signal
import threading

import pytest

from headrace.datastores.interrupt import Terminated, allowed, held, taken


def _press() -> None:
    os.kill(os.getpid(), signal.SIGINT)


def _press_and_fail() -> None:
    _press()
    raise ZeroDivisionError


def test_an_allowed_block_delivers_what_was_put_off() -> None:
    done = []

    def work() -> None:
        with held():
            _press()
            done.append("held")
            with allowed():
                done.append("allowed")

    with pytest.raises(KeyboardInterrupt):
        work()
    assert done == ["held"]


def test_blocks_lie_inside_each_other() -> None:
    done = []

    def work() -> None:
        with held():
            with held():
                _press()
                done.append("inner")
            done.append("outer")
        done.append("behind")

    with pytest.raises(KeyboardInterrupt):
        work()
    assert done == ["inner", "outer"]


def test_an_error_in_a_block_does_not_hide_the_interrupt() -> None:
    """It may have come of the same Ctrl-C: a child that got it too, for example."""
    with pytest.raises(KeyboardInterrupt) as raised, held():
        _press_and_fail()
    assert isinstance(raised.value.__context__, ZeroDivisionError)
    with held():
        pass


def test_an_error_that_is_caught_leaves_the_interrupt_to_the_outer_block() -> None:
    done = []

    def work() -> None:
        with held():
            try:
                with held():
                    _press_and_fail()
            except ZeroDivisionError:
                done.append("caught")

    with pytest.raises(KeyboardInterrupt):
        work()
    assert done == ["caught"]


def test_a_second_interrupt_is_not_put_off() -> None:
    done = []

    def work() -> None:
        with held():
            _press()
            done.append("once")
            _press()
            done.append("twice")

    with pytest.raises(KeyboardInterrupt):
        work()
    assert done == ["once"]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_other_threads_have_no_part_in_it() -> None:
    def work() -> None:
        with held(), allowed():
            done.append(signal.getsignal(signal.SIGINT))

    done: list[object] = []
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert done == [signal.default_int_handler]


def test_a_handler_of_the_user_is_left_alone() -> None:
    seen: list[int] = []
    before = signal.signal(signal.SIGINT, lambda number, frame: seen.append(number))
    try:
        handler = signal.getsignal(signal.SIGINT)
        with held():
            _press()
            assert seen == [signal.SIGINT]
        assert signal.getsignal(signal.SIGINT) is handler
    finally:
        signal.signal(signal.SIGINT, before)


def test_an_interrupt_that_was_taken_is_not_raised_any_more() -> None:
    with held(termination=True):
        assert taken() is None
        _press()
        assert taken() is KeyboardInterrupt
        assert taken() is None
        os.kill(os.getpid(), signal.SIGTERM)
        assert taken() is Terminated
