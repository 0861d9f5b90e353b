"""Keyed randomness: the published generator, and numbers that depend on their key and on nothing else."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from headrace.augment import ImageAugmenter
from headrace.augment.random import Draw, Purpose, philox4x32
from headrace.errors import ConfigError

IDS = st.lists(st.integers(0, 2**63 - 1), min_size=1, max_size=8)
GOLDEN = [
    [0.1678194558535474, 0.9941213817663278, 0.9603947789208017],
    [0.3805328668760315, 0.3809664066211148, 0.5911632801505603],
    [0.46754010333110607, 0.4610679683210306, 0.28562154799765094],
]
GOLDEN_FORKS = [12396180084288244926, 4563751643173538973]
GOLDEN_GENERATOR = [0.5576099152634657, 0.36939468725273916]


# Known answers of Philox4x32-10, from the file kat_vectors of the authors' Random123 distribution.
@pytest.mark.parametrize(
    ("counter", "key", "answer"),
    [
        ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
        ((0xFFFFFFFF,) * 4, (0xFFFFFFFF,) * 2, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
        (
            (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
            (0xA4093822, 0x299F31D0),
            (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
        ),
    ],
)
def test_philox_gives_the_published_answers(counter, key, answer) -> None:
    counters = np.array([counter, (1, 2, 3, 4), counter], np.uint32)
    words = philox4x32(counters, key)
    assert words.dtype == np.uint32
    assert tuple(words[0].tolist()) == tuple(words[2].tolist()) == answer
    assert tuple(words[1].tolist()) != answer


def test_golden_numbers_never_change() -> None:
    numbers = Draw(seed=2**40 + 3, epoch=5).uniforms(np.array([0, 7, 2**40]), Purpose.CROP, 3)
    assert numbers.tolist() == GOLDEN
    assert Draw(seed=2**40 + 3, epoch=5).generator(7).random(2).tolist() == GOLDEN_GENERATOR
    assert [purpose.value for purpose in Purpose] == [1, 2, 3, 4, 5, 6, 7, 8, 9, 10]
    assert [Draw(1, 5).fork(number).seed for number in (1, 2)] == GOLDEN_FORKS


@given(IDS, st.integers(0, 2**64 - 1), st.integers(0, 2**32 - 1), st.integers(1, 9))
def test_a_sample_gets_the_same_numbers_in_any_company(ids, seed, epoch, count) -> None:
    draw = Draw(seed, epoch)
    together = draw.uniforms(np.array(ids), Purpose.COLOR, count)
    assert together.shape == (len(ids), count)
    assert together.dtype == np.float64
    assert ((together >= 0) & (together < 1)).all()
    for row, index in enumerate(ids):
        alone = draw.uniforms(np.array([index]), Purpose.COLOR, count + 3)
        assert np.array_equal(alone[0, :count], together[row])


def test_no_ids_and_no_numbers_are_fine() -> None:
    assert Draw().uniforms(np.array([], np.int64), Purpose.CROP, 4).shape == (0, 4)
    assert Draw().uniforms(np.arange(3), Purpose.CROP, 0).shape == (3, 0)


def test_seed_epoch_purpose_and_id_each_make_another_world() -> None:
    ids = np.arange(500)
    worlds = [
        Draw(1, 1).uniforms(ids, Purpose.CROP, 2),
        Draw(2, 1).uniforms(ids, Purpose.CROP, 2),
        Draw(1 + 2**32, 1).uniforms(ids, Purpose.CROP, 2),
        Draw(1, 2).uniforms(ids, Purpose.CROP, 2),
        Draw(1, 1).uniforms(ids, Purpose.GEOMETRY, 2),
        Draw(1, 1).uniforms(ids + 2**32, Purpose.CROP, 2),
    ]
    numbers = np.concatenate([world.ravel() for world in worlds])
    assert len(np.unique(numbers)) == numbers.size
    for first in range(len(worlds)):
        for second in range(first):
            correlation = np.corrcoef(worlds[first].ravel(), worlds[second].ravel())[0, 1]
            assert abs(correlation) < 4 / np.sqrt(1000)  # four standard deviations


@pytest.mark.parametrize("purpose", [Purpose.CROP, Purpose.GEOMETRY])
def test_numbers_are_uniform(purpose) -> None:
    numbers = Draw(0, 0).uniforms(np.arange(20000), purpose, 4)
    for column in numbers.T:
        assert stats.kstest(column, "uniform").pvalue > 1e-4
    bits = (numbers * 2.0**53).astype(np.uint64)
    set_share = [float(((bits >> np.uint64(bit)) & np.uint64(1)).mean()) for bit in range(53)]
    assert np.allclose(set_share, 0.5, atol=4 * 0.5 / np.sqrt(numbers.size))


def test_neighbours_are_independent() -> None:
    numbers = Draw(3, 0).uniforms(np.arange(20000), Purpose.CROP, 4)
    limit = 4 / np.sqrt(len(numbers))
    off_diagonal = np.corrcoef(numbers.T) - np.eye(4)
    assert np.abs(off_diagonal).max() < limit  # between the numbers of a sample
    assert abs(np.corrcoef(numbers[1:, 0], numbers[:-1, 0])[0, 1]) < limit  # between samples
    following = Draw(3, 1).uniforms(np.arange(20000), Purpose.CROP, 1)
    assert abs(np.corrcoef(numbers[:, 0], following[:, 0])[0, 1]) < limit  # between epochs
    pairs, _, _ = np.histogram2d(numbers[:, 0], numbers[:, 1], bins=10, range=((0, 1), (0, 1)))
    assert stats.chisquare(pairs.ravel()).pvalue > 1e-4


def test_generators_of_samples_purposes_and_streams_differ() -> None:
    draw = Draw(1, 2)
    first = draw.generator(5).random(4).tolist()
    assert draw.generator(5).random(4).tolist() == first
    others = [
        draw.generator(6),
        draw.generator(5, Purpose.NOISE),
        draw.generator(5, stream=1),
        Draw(1, 3).generator(5),
        Draw(2, 2).generator(5),
    ]
    numbers = [tuple(first), *(tuple(other.random(4)) for other in others)]
    assert len({number for row in numbers for number in row}) == 24


@pytest.mark.parametrize(("seed", "epoch"), [(-1, 0), (2**64, 0), (0, -1), (0, 2**32)])
def test_seeds_and_epochs_out_of_range_are_refused(seed, epoch) -> None:
    with pytest.raises(ConfigError, match=r"must be a whole number in 0 \.\. "):
        Draw(seed, epoch)


@pytest.mark.parametrize("count", [-1, 131_073])
def test_too_many_numbers_are_refused(count):
    with pytest.raises(ConfigError, match=f"0 .. 131072 numbers for one purpose, got {count}"):
        Draw().uniforms(np.array([1]), Purpose.NOISE, count)


def test_the_last_numbers_of_one_purpose_are_not_those_of_the_next():
    last = Draw().uniforms(np.array([1]), Purpose.NOISE, 131_072)[0, -2:]
    assert not np.isin(last, Draw().uniforms(np.array([1]), Purpose.MIX, 2)).any()


def test_forks_are_worlds_of_their_own() -> None:
    draw, ids = Draw(1, 2), np.arange(500)
    worlds = [draw, draw.fork(1), draw.fork(2), draw.fork(1).fork(1), draw.fork(1).fork(2), Draw(2, 2).fork(1)]
    numbers = [world.uniforms(ids, Purpose.CROP, 2).ravel() for world in worlds]
    assert len(np.unique(numbers)) == 6000
    assert np.abs(np.corrcoef(numbers) - np.eye(6)).max() < 4.5 / np.sqrt(1000)
    assert draw.fork(0) is draw
    assert {world.epoch for world in worlds} == {2}
    for number in (-1, 2**32, 1.0, True):
        with pytest.raises(ConfigError, match="number must be a whole number"):
            draw.fork(number)


def test_what_the_package_draws_is_apart_from_what_users_draw() -> None:
    """A datastore of a user's that draws from streams of its own, below an ImageAugmenter with functions."""
    draw, drawn = Draw(3), list[float]()

    def angle(rng: np.random.Generator) -> float:
        drawn.append(rng.random())
        return drawn[-1]

    parameters = ("rotation", "x_scale", "y_scale", "x_shear", "y_shear", "x_translation", "y_translation")
    ImageAugmenter(**dict.fromkeys(parameters, angle)).sample_matrices(np.arange(3), draw)
    assert len(drawn) == 21
    own = {draw.generator(index, stream=stream).random() for index in range(3) for stream in range(600)}
    assert not own & set(drawn)
