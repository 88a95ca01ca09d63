"""Partition schemes: properties of each, hand-checked numbers, bounds and messages."""

import time

import numpy as np
import pytest

import data
from data import DataError, DataSpec, ImageDataset, load_client_data, partition_indices
from data.class_shares import apply_table, share_table
from data.partition import compute_split
from data.partitioners import pathological

pytestmark = pytest.mark.usefixtures("private_cache")


def make_dataset(train_per_class=80, test_per_class=20, num_classes=10):
    labels = np.concatenate(
        [
            np.repeat(np.arange(num_classes), train_per_class),
            np.repeat(np.arange(num_classes), test_per_class),
        ]
    ).astype(np.int64)
    return ImageDataset(
        name="synthetic",
        images=np.zeros((len(labels), 1, 1, 1), np.uint8),
        labels=labels,
        train_size=train_per_class * num_classes,
        class_names=tuple(map(str, range(num_classes))),
        fingerprint="0" * 16,
    )


def assert_each_row_once(clients, expected_rows, with_test=True):
    parts = [part for c in clients for part in (c.train, c.validation)]
    if with_test:
        parts += [c.test for c in clients]
    assert all(part.dtype == np.int64 for part in parts)
    np.testing.assert_array_equal(np.sort(np.concatenate(parts)), expected_rows)


def arrays_of(clients):
    return [part for c in clients for part in (c.train, c.validation, c.test)]


def same(first, second):
    return all(map(np.array_equal, arrays_of(first), arrays_of(second)))


@pytest.mark.parametrize("partition", data.PARTITIONS)
@pytest.mark.parametrize("test_split", data.TEST_SPLITS)
def test_every_row_has_exactly_one_owner(partition, test_split):
    dataset = make_dataset()
    spec = DataSpec(partition=partition, test_split=test_split, min_examples=2)
    clients = partition_indices(spec, dataset, 10)
    assert len(clients) == 10
    if test_split == "personal":
        assert_each_row_once(clients, np.arange(1000))
    else:
        assert_each_row_once(clients, np.arange(800), with_test=False)
        for client in clients:
            np.testing.assert_array_equal(client.test, np.arange(800, 1000))


@pytest.mark.parametrize("partition", ["dirichlet", "pathological", "iid"])
def test_personal_pool_is_cut_75_25_and_validation_is_rounded_down(partition):
    spec = DataSpec(partition=partition, min_examples=2, validation_fraction=0.1)
    for client in partition_indices(spec, make_dataset(), 10):
        kept = len(client.train) + len(client.validation)
        pool = kept + len(client.test)
        assert kept == int(0.75 * pool)
        assert len(client.validation) == kept // 10


@pytest.mark.parametrize("partition", data.PARTITIONS)
def test_same_request_same_split_and_another_seed_another_split(partition):
    dataset = make_dataset()
    spec = DataSpec(partition=partition, min_examples=2, partition_seed=1)
    first = partition_indices(spec, dataset, 5)
    from_disk = partition_indices(spec, make_dataset(), 5)  # another object: not from memory
    fresh = compute_split(spec, dataset, 5)
    other_seed = DataSpec(partition=partition, min_examples=2, partition_seed=2)
    assert same(first, from_disk)
    assert same(first, fresh)
    assert not same(first, partition_indices(other_seed, dataset, 5))


def test_splits_leave_the_global_generators_alone():
    np.random.seed(3)  # noqa: NPY002 - the global generator is what is tested
    before = np.random.get_state()[1].copy()  # noqa: NPY002
    for partition in data.PARTITIONS:
        compute_split(DataSpec(partition=partition, min_examples=0), make_dataset(), 5)
    np.testing.assert_array_equal(before, np.random.get_state()[1])  # noqa: NPY002


def test_returned_rows_cannot_be_changed_by_a_caller():
    client = partition_indices(DataSpec(partition="iid"), make_dataset(), 5)[0]
    with pytest.raises(ValueError, match="read-only"):
        client.train[0] = 7


@pytest.mark.parametrize("draw", range(40))
def test_any_request_ends_with_a_whole_split_or_a_data_error(draw):
    generator = np.random.default_rng(draw)
    dataset = make_dataset(int(generator.integers(1, 30)), 3, int(generator.integers(1, 6)))
    num_clients = int(generator.integers(1, 20))
    spec = DataSpec(
        partition=data.PARTITIONS[draw % 4],
        test_split=str(generator.choice(data.TEST_SPLITS)),
        classes_per_client=int(generator.integers(1, 7)),
        min_examples=0,
        validation_fraction=float(generator.choice([0.0, 0.1, 0.5])),
        partition_seed=draw,
    )
    try:
        clients = compute_split(spec, dataset, num_clients)
    except DataError:
        return
    personal = spec.test_split == "personal"
    rows = len(dataset) if personal else dataset.train_size
    assert_each_row_once(clients, np.arange(rows), with_test=personal)


def test_large_alpha_is_nearly_uniform():
    dataset = make_dataset(train_per_class=4000, test_per_class=0)
    spec = DataSpec(alpha=1e4, test_split="global", validation_fraction=0)
    for client in partition_indices(spec, dataset, 10):
        shares = np.bincount(dataset.labels[client.train], minlength=10) / len(client.train)
        np.testing.assert_allclose(shares, 0.1, rtol=0.05)


def test_200_skewed_clients_end_within_seconds():
    spec = DataSpec(alpha=0.1, min_examples=2)
    start = time.perf_counter()
    with pytest.raises(DataError) as caught:
        partition_indices(spec, make_dataset(320, 80), 200)
    assert time.perf_counter() - start < 20
    message = str(caught.value)
    for part in ("alpha=0.1", "200 clients", "2 of 4000", "alpha=0.5", "(50)", "min-examples=0"):
        assert part in message


def test_the_suggested_minimum_is_the_largest_that_works():
    """And not that of the first draw, which leaves a client of this split with next to nothing."""
    dataset = make_dataset()

    def divided(min_examples):
        return partition_indices(DataSpec(alpha=0.1, min_examples=min_examples), dataset, 30)

    def smallest_client(min_examples):
        clients = divided(min_examples)
        return min(len(c.train) + len(c.validation) + len(c.test) for c in clients)

    def suggested(min_examples):
        with pytest.raises(DataError, match=r"min-examples=\d+") as caught:
            divided(min_examples)
        return int(str(caught.value).split("min-examples=")[1].split(")")[0])

    smallest = suggested(16)
    assert smallest_client(smallest) == smallest
    assert suggested(smallest + 1) == smallest > smallest_client(0)


def test_without_minimum_empty_one_example_and_one_class_clients_are_legal():
    dataset = make_dataset(320, 80)
    clients = partition_indices(DataSpec(alpha=0.1, min_examples=0), dataset, 200)
    assert_each_row_once(clients, np.arange(4000))
    pools = [np.concatenate([c.train, c.validation, c.test]) for c in clients]
    assert min(map(len, pools)) == 0
    single = [c for c, pool in zip(clients, pools, strict=True) if len(pool) == 1]
    assert all(len(c.train) == 1 for c in single)  # its only example is for training


def test_underflowing_alpha_is_an_error_and_not_a_client_with_everything():
    with pytest.raises(DataError, match=r"alpha=1e-05.*underflow"):
        partition_indices(DataSpec(alpha=1e-5, min_examples=0), make_dataset(num_classes=100), 3)


def test_pathological_quotas_by_hand():
    # K=5, c=2, C=5: two clients a class, in id order while their quota lasts.
    labels = np.repeat(np.arange(5), 100)
    held = [set(labels[rows]) for rows in pathological(labels, 5, 2, seed=0)]
    assert held == [{0, 1}, {0, 1}, {2, 3}, {2, 3}, {4}]


def test_pathological_counts_are_in_the_papers_range():
    # 100 examples over 2 clients: the first gets 8..49 (max(50/10, 40/5) to 50), the last the rest.
    labels = np.repeat(np.arange(5), 100)
    for seed in range(20):
        first, last, *_ = pathological(labels, 5, 2, seed)
        for label in (0, 1):
            count = int((labels[first] == label).sum())
            assert 8 <= count < 50
            assert int((labels[last] == label).sum()) == 100 - count


def test_pathological_leaves_no_class_without_client_where_quotas_do_not_divide():
    # ceil(7*2/10) = 2 clients a class would use up all 14 places on the first 8 classes.
    labels = np.repeat(np.arange(10), 50)
    parts = pathological(labels, 7, 2, seed=0)
    held = [sorted(set(labels[rows].tolist())) for rows in parts]
    assert held == [[0, 1], [0, 1], [2, 3], [2, 3], [4, 5], [6, 7], [8, 9]]
    np.testing.assert_array_equal(np.sort(np.concatenate(parts)), np.arange(500))


def test_class_share_table_gives_each_client_its_classes_and_each_class_away_whole():
    table = share_table(np.arange(10), num_clients=20, classes_per_client=2, seed=0)
    np.testing.assert_array_equal((table > 0).sum(axis=1), 2)
    np.testing.assert_array_equal((table > 0).sum(axis=0), 4)  # 2 * 20 / 10
    np.testing.assert_allclose(table.sum(axis=0), 1)
    held = table[table > 0]  # 0.4..0.6 over the sum of four such
    assert held.min() >= 0.4 / (0.4 + 3 * 0.6)
    assert held.max() <= 0.6 / (0.6 + 3 * 0.4)


@pytest.mark.parametrize(("clients", "per_client"), [(7, 2), (3, 7), (10, 10), (13, 3)])
def test_class_share_table_copes_with_counts_that_do_not_divide(clients, per_client):
    table = share_table(np.arange(10), clients, per_client, seed=1)
    np.testing.assert_array_equal((table > 0).sum(axis=1), per_client)
    np.testing.assert_allclose(table.sum(axis=0), 1)


def test_class_shares_are_applied_as_the_table_says():
    table = np.array([[0.25, 1.0], [0.75, 0.0]])
    labels = np.repeat([4, 9], 8)
    first, second = apply_table(table, np.array([4, 9]), labels, seed=0)
    assert np.bincount(labels[first], minlength=10)[[4, 9]].tolist() == [2, 8]
    assert np.bincount(labels[second], minlength=10)[[4, 9]].tolist() == [6, 0]


def test_class_shares_hold_in_training_validation_and_test_alike():
    dataset = make_dataset(400, 200, 4)
    spec = DataSpec(partition="class-shares", validation_fraction=0.2)
    for client in partition_indices(spec, dataset, 4):
        held = set(dataset.labels[client.train])
        assert len(held) == 2
        assert set(dataset.labels[client.validation]) == held
        assert set(dataset.labels[client.test]) == held


def test_iid_sizes_differ_by_at_most_one():
    clients = partition_indices(
        DataSpec(partition="iid", test_split="global", validation_fraction=0), make_dataset(), 7
    )
    sizes = [len(c.train) for c in clients]
    assert max(sizes) - min(sizes) <= 1


def test_subset_is_stratified_and_drawn_from_the_partition_seed():
    dataset = make_dataset()
    used = []
    for seed in (0, 0, 1):
        spec = DataSpec(partition="iid", subset=0.25, partition_seed=seed)
        rows = np.sort(np.concatenate(arrays_of(partition_indices(spec, dataset, 4))))
        train, test = rows[rows < 800], rows[rows >= 800]
        np.testing.assert_array_equal(np.bincount(dataset.labels[train]), 20)
        np.testing.assert_array_equal(np.bincount(dataset.labels[test]), 5)
        used.append(rows)
    np.testing.assert_array_equal(used[0], used[1])
    assert not np.array_equal(used[0], used[2])


@pytest.mark.parametrize(
    ("changes", "clients", "message"),
    [
        ({"partition": "pathological", "classes_per_client": 11}, 5, "exceeds the 10 classes"),
        ({"partition": "class-shares", "classes_per_client": 11}, 5, "exceeds the 10 classes"),
        ({"partition": "pathological"}, 3, "classes-per-client=4 or use 5 clients"),
        ({"partition": "class-shares"}, 3, "classes-per-client=4 or use 5 clients"),
        ({"partition": "pathological"}, 900, "class 0 has 100 examples for 180 clients"),
        ({"partition": "iid"}, 1001, "1001 clients cannot share 1000 examples"),
        ({}, 1001, "1001 clients cannot share 1000 examples"),
        ({}, 0, "num-clients=0"),
    ],
)
def test_unsatisfiable_requests_name_sizes_and_remedy(changes, clients, message):
    with pytest.raises(DataError, match=message):
        partition_indices(DataSpec(**changes), make_dataset(), clients)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("dataset", "mnist"),
        ("partition", "random"),
        ("alpha", 0.0),
        ("alpha", float("nan")),
        ("classes_per_client", 0),
        ("classes_per_client", 2.5),
        ("min_examples", -1),
        ("min_examples", True),
        ("partition_seed", -1),
        ("test_split", "both"),
        ("validation_fraction", 1.0),
        ("validation_fraction", "0.1"),
        ("subset", 0.0),
        ("subset", 1.1),
        ("image_size", -1),
    ],
)
def test_values_out_of_range_are_named(field, value):
    with pytest.raises(DataError) as caught:
        DataSpec(**{field: value})
    assert f"{field.replace('_', '-')}={value!r}" in str(caught.value)


@pytest.mark.parametrize("client", [-1, 5])
def test_client_id_out_of_range_is_named(client):
    with pytest.raises(DataError, match=rf"client-id={client} .* 0 to 4"):
        load_client_data(DataSpec(), client, 5)


def test_damaged_split_file_is_computed_again(tmp_path):
    spec = DataSpec(partition="iid")
    first = partition_indices(spec, make_dataset(), 5)
    (stored,) = (tmp_path / "cache" / "splits").glob("*/split.npz")
    stored.write_bytes(stored.read_bytes()[:100])
    assert same(first, partition_indices(spec, make_dataset(), 5))
    with np.load(stored) as arrays:
        assert "train" in arrays
