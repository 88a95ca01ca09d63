"""Clients of unlike sizes: properties in every scheme, hand-computed numbers, bounds, messages."""

import time

import numpy as np
import pytest

import data
from data import DataError, DataSpec, ImageDataset, partition_indices
from data.partition import compute_split
from data.sizes import draw_sizes, fit_table, to_whole, unlike_sizes

pytestmark = pytest.mark.usefixtures("private_cache")


def make_dataset(train_per_class=200, test_per_class=50, num_classes=10):
    counts = [train_per_class] * num_classes + [test_per_class] * num_classes
    labels = np.repeat(np.tile(np.arange(num_classes), 2), counts).astype(np.int64)
    names = tuple(map(str, range(num_classes)))
    images = np.zeros((len(labels), 1, 1, 1), np.uint8)
    return ImageDataset("made", images, labels, train_per_class * num_classes, names, "0" * 16)


def pools(clients, with_test=True):
    return [
        np.concatenate([c.train, c.validation, *([c.test] if with_test else [])]) for c in clients
    ]


def classes_of(labels, rows):
    return {int(label) for label in labels[rows]}


@pytest.mark.parametrize("partition", data.PARTITIONS)
@pytest.mark.parametrize("draw", range(12))
def test_every_row_once_whatever_is_asked_for(partition, draw):
    generator = np.random.default_rng(draw)
    dataset = make_dataset(int(generator.integers(5, 60)), 5, int(generator.integers(2, 8)))
    spec = DataSpec(
        partition=partition, size_sigma=float(generator.choice([0.1, 1.0, 5.0])), min_examples=0,
        test_split=str(generator.choice(data.TEST_SPLITS)), partition_seed=draw,
        classes_per_client=int(generator.integers(1, 4)), alpha=float(generator.choice([0.3, 3])),
    )  # fmt: skip
    try:
        clients = compute_split(spec, dataset, int(generator.integers(1, 12)))
    except DataError:
        return
    personal = spec.test_split == "personal"
    rows = np.arange(len(dataset) if personal else dataset.train_size)
    np.testing.assert_array_equal(np.sort(np.concatenate(pools(clients, personal))), rows)


@pytest.mark.parametrize("partition", data.PARTITIONS)
def test_seeded_and_cached(partition):
    spec = DataSpec(partition=partition, size_sigma=0.5, min_examples=2)
    first, again = compute_split(spec, make_dataset(), 10), compute_split(spec, make_dataset(), 10)
    cached = partition_indices(spec, make_dataset(), 10)
    for one, two, three in zip(pools(first), pools(again), pools(cached), strict=True):
        np.testing.assert_array_equal(one, two)
        np.testing.assert_array_equal(one, three)
    for other in (DataSpec(partition=partition, size_sigma=0.6, min_examples=2),
                  DataSpec(partition=partition, size_sigma=0.5, partition_seed=1, min_examples=2),
                  DataSpec(partition=partition, min_examples=2)):  # fmt: skip
        clients = pools(partition_indices(other, make_dataset(), 10))
        assert any(map(lambda a, b: not np.array_equal(a, b), clients, pools(first)))


def test_iid_sizes_are_those_drawn_and_log_normal():
    dataset = make_dataset(1000, 0)
    spec = DataSpec(
        partition="iid", size_sigma=0.8, min_examples=1, test_split="global", validation_fraction=0
    )
    logs = []
    for seed in range(20):
        changed = DataSpec(**{**spec.__dict__, "partition_seed": seed})
        sizes = [len(c.train) for c in compute_split(changed, dataset, 50)]
        logs.append(np.log(sizes))
    # 1000 logarithms: their deviation is within 5 % of sigma (standard error 2.2 %).
    assert np.std(logs, ddof=1) == pytest.approx(0.8, rel=0.05)
    assert abs(float(np.mean([np.mean((one - one.mean()) ** 3) for one in logs]))) < 0.1


def test_dirichlet_clients_have_the_sizes_drawn_and_keep_their_lack_of_classes():
    dataset = make_dataset(1000, 0)
    plain = DataSpec(alpha=0.5, test_split="global", validation_fraction=0, min_examples=1)
    clients = compute_split(plain, dataset, 10)
    sized = compute_split(DataSpec(**{**plain.__dict__, "size_sigma": 1.0}), dataset, 10)
    for before, after in zip(clients, sized, strict=True):
        assert classes_of(dataset.labels, after.train) <= classes_of(dataset.labels, before.train)
    sizes = np.array([len(client.train) for client in sized])
    assert sizes.max() > 5 * sizes.min()
    # Another alpha, the same sizes: skew in classes and in sizes are set apart from each other.
    other = DataSpec(**{**plain.__dict__, "size_sigma": 1.0, "alpha": 5.0})
    again = np.array([len(client.train) for client in compute_split(other, dataset, 10)])
    np.testing.assert_allclose(sizes, again, atol=60)


@pytest.mark.parametrize("partition", ["pathological", "class-shares"])
def test_clients_of_few_classes_keep_all_of_them(partition):
    dataset = make_dataset()
    plain = DataSpec(partition=partition, classes_per_client=3, min_examples=1)
    clients = compute_split(plain, dataset, 20)
    sized = compute_split(DataSpec(**{**plain.__dict__, "size_sigma": 1.5}), dataset, 20)
    for before, after in zip(pools(clients), pools(sized), strict=True):
        assert classes_of(dataset.labels, before) == classes_of(dataset.labels, after)
    sizes = [len(pool) for pool in pools(sized)]
    assert np.std(np.log(sizes)) > 1.3 * np.std(np.log([len(pool) for pool in pools(clients)]))


def test_a_global_test_set_is_the_same_for_all():
    spec = DataSpec(partition="iid", size_sigma=1.0, min_examples=1, test_split="global")
    dataset = make_dataset()
    for client in compute_split(spec, dataset, 5):
        np.testing.assert_array_equal(client.test, np.arange(dataset.train_size, len(dataset)))


def test_minimum_holds_in_every_scheme():
    for partition in data.PARTITIONS:
        spec = DataSpec(partition=partition, size_sigma=0.7, min_examples=25, validation_fraction=0)
        for client in compute_split(spec, make_dataset(), 8):
            held = len(client.train) if partition == "class-shares" else len(
                np.concatenate([client.train, client.test])
            )  # fmt: skip
            assert held >= 25, partition


@pytest.mark.parametrize("partition", data.PARTITIONS)
def test_unsatisfiable_sizes_name_numbers_and_a_minimum_that_works(partition):
    spec = DataSpec(partition=partition, size_sigma=3.0, min_examples=40, alpha=1.0)
    with pytest.raises(DataError, match=r"size-sigma=3 could not give each of 20 clients") as error:
        compute_split(spec, make_dataset(), 20)
    for part in ("size-sigma=1.5", "clients (5)", "of 2500" if partition != "class-shares"
                 else "of 1800", "10 draws"):  # fmt: skip
        assert part in str(error.value)
    smallest = int(str(error.value).split("min-examples=")[1].split(")")[0])
    changed = DataSpec(**{**spec.__dict__, "min_examples": smallest})
    sizes = [len(pool) for pool in pools(compute_split(changed, make_dataset(), 20))]
    assert min(sizes) >= smallest


def test_the_fit_by_hand():
    # Two clients, two classes, odds ratio (3 * 3) / (1 * 1) = 9. Sizes 2 and 6 of the same 4 + 4:
    # [[a, 2 - a], [4 - a, 2 + a]] with a (2 + a) = 9 (2 - a) (4 - a) has a = (56 - sqrt(832)) / 16.
    a = (56 - np.sqrt(832)) / 16
    fitted = fit_table(np.array([[3.0, 1.0], [1.0, 3.0]]), np.array([2, 6]), least=0)
    np.testing.assert_allclose(fitted, [[a, 2 - a], [4 - a, 2 + a]], atol=0.02)
    np.testing.assert_allclose(fitted.sum(axis=0), [4, 4], rtol=1e-12)


def test_where_classes_leave_no_room_rows_still_have_one_owner():
    # Client 0 alone holds class 0: it gets all 10 rows of it, whatever size was drawn.
    counts = np.array([[10.0, 0.0], [0.0, 10.0]])
    for least in (0, 1):
        np.testing.assert_allclose(fit_table(counts, np.array([1, 19]), least), counts)


def test_rounding_keeps_columns_and_comes_near_the_sizes():
    generator = np.random.default_rng(0)
    for _ in range(30):
        counts = generator.integers(0, 9, size=(12, 7)).astype(float)
        counts[0, :] += 1
        sizes = draw_sizes(counts.sum(axis=1), 1.0, generator)
        fitted = fit_table(counts, sizes, least=0)
        whole = to_whole(fitted, sizes)
        np.testing.assert_array_equal(whole.sum(axis=0), counts.sum(axis=0))
        assert (whole[counts == 0] == 0).all()
        assert np.abs(whole.sum(axis=1) - fitted.sum(axis=1)).max() <= 2


def test_drawn_sizes_add_up_and_leave_the_empty_empty():
    sizes = draw_sizes(np.array([5, 0, 5, 91]), 2.0, np.random.default_rng(0))
    assert sizes.sum() == 101
    assert sizes[1] == 0


def test_a_client_without_rows_stays_without():
    labels = np.repeat([0, 1], 50)
    parts = [np.arange(60), np.arange(0), np.arange(60, 100)]
    again = unlike_sizes(labels, parts, 1.0, 0, seed=0, keep=False)
    assert len(again[1]) == 0
    np.testing.assert_array_equal(np.sort(np.concatenate(again)), np.arange(100))


def test_a_thousand_clients_end_within_seconds():
    dataset = make_dataset(300, 100, 100)
    start = time.perf_counter()
    clients = compute_split(
        DataSpec(partition="pathological", size_sigma=1.0, min_examples=0, classes_per_client=5),
        dataset, 1000,
    )  # fmt: skip
    assert time.perf_counter() - start < 20
    np.testing.assert_array_equal(np.sort(np.concatenate(pools(clients))), np.arange(40_000))
