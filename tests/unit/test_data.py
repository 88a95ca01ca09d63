"""Client splits and batches, and the small built-in dataset they are tried on."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

import data
from data import (
    DataError,
    DataSpec,
    ImageDataset,
    Split,
    load_client_data,
    load_dataset,
    load_device_data,
    normalise,
)

ROOT = Path(__file__).parents[2]


pytestmark = pytest.mark.usefixtures("private_cache")


def make_split(count):
    """Make a split of rows 100.. of a dataset whose image i is filled with i, label i % 3."""
    images = np.broadcast_to(np.arange(200, dtype=np.uint8)[:, None, None, None], (200, 1, 2, 2))
    labels = np.arange(200, dtype=np.int64) % 3
    dataset = ImageDataset("synthetic", images, labels, 200, ("a", "b", "c"), "0" * 16)
    return Split(dataset, np.arange(100, 100 + count, dtype=np.int64))


def contents(batches):
    return [images[:, 0, 0, 0].tolist() for images, _ in batches]


def test_digits_need_no_network_and_have_a_fixed_stratified_split(monkeypatch):
    def refuse(*arguments, **keywords):
        raise AssertionError("tried to open a connection")

    monkeypatch.setattr("socket.socket.connect", refuse)
    digits = load_dataset("digits")
    assert digits.images.shape == (1797, 1, 32, 32)
    assert digits.images.dtype == np.uint8
    assert digits.labels.dtype == np.int64
    assert (digits.num_classes, digits.channels, digits.image_size) == (10, 1, 32)
    assert digits.images.max() == 255
    whole = np.bincount(digits.labels)
    test = np.bincount(digits.labels[digits.train_size :])
    np.testing.assert_allclose(test / whole, 0.2, atol=0.005)


def test_the_same_dataset_is_opened_once_and_maps_its_file():
    digits = load_dataset("digits")
    assert load_dataset(DataSpec("digits")) is digits
    assert isinstance(digits.images.base, np.memmap)
    assert not digits.images.flags.writeable


def test_image_size_resizes():
    small = load_dataset("digits", image_size=8)
    assert small.images.shape[1:] == (1, 8, 8)
    assert small.fingerprint != load_dataset("digits").fingerprint


def test_two_runs_give_each_client_the_same_hash(tmp_path, monkeypatch):
    spec = DataSpec("digits", partition_seed=3)
    hashes = []
    for run in ("first", "second"):
        monkeypatch.setenv("WILDFLOWER_CACHE", str(tmp_path / run))
        data.clear_memory()
        hashes.append([load_client_data(spec, client, 5).data_hash for client in range(5)])
    assert hashes[0] == hashes[1]
    assert len(set(hashes[0])) == 5
    assert all(len(bytes.fromhex(one)) == 8 for one in hashes[0])


def test_hash_follows_the_partition_seed():
    hashes = {
        load_client_data(DataSpec("digits", partition_seed=seed), 0, 5).data_hash
        for seed in (1, 2, 3)
    }
    assert len(hashes) == 3


def test_client_data_describes_its_dataset():
    client = load_client_data(DataSpec("digits"), 2, 5)
    assert (client.num_classes, client.channels, client.image_size) == (10, 1, 32)
    assert client.class_names == tuple("0123456789")
    assert sum(client.train.class_counts().values()) == len(client.train)
    images, labels = client.test.batch([0, 1])
    assert images.shape == (2, 1, 32, 32)
    assert labels.tolist() == client.test.labels[:2].tolist()


def test_device_data_is_the_whole_dataset():
    device = load_device_data(DataSpec("digits", validation_fraction=0.25))
    digits = load_dataset("digits")
    assert len(device.validation) == digits.train_size // 4
    assert len(device.train) + len(device.validation) == digits.train_size
    np.testing.assert_array_equal(device.test.indices, np.arange(digits.train_size, 1797))
    assert not set(device.train.indices) & set(device.validation.indices)
    assert load_device_data(DataSpec("digits", subset=0.1)).test.class_counts().keys() == set(
        range(10)
    )


def test_seven_examples_in_batches_of_ten_are_all_used_in_another_order_each_epoch():
    split = make_split(7)
    orders = []
    for _ in range(2):
        generator = torch.Generator().manual_seed(0)
        orders.append([contents(split.batches(10, generator)) for _ in range(3)])
    assert all(len(epoch) == 1 and sorted(epoch[0]) == list(range(100, 107)) for epoch in orders[0])
    assert orders[0][0] != orders[0][1]
    assert orders[0] == orders[1]


def test_batches_keep_order_without_generator_and_pair_images_with_labels():
    batches = list(make_split(5).batches(2))
    assert contents(batches) == [[100, 101], [102, 103], [104]]
    images, labels = batches[0]
    assert (images.dtype, labels.dtype) == (torch.uint8, torch.int64)
    assert labels.tolist() == [100 % 3, 101 % 3]


@pytest.mark.parametrize(
    ("count", "sizes"), [(5, [2, 2]), (4, [2, 2]), (1, [1]), (3, [2]), (0, [])]
)
def test_a_last_batch_of_one_is_left_out_unless_it_is_the_only_one(count, sizes):
    batches = make_split(count).batches(2, drop_singletons=True)
    assert [len(labels) for _, labels in batches] == sizes


def test_batch_takes_positions_of_any_kind_and_copies():
    split = make_split(5)
    for positions in ([4, 0], np.array([4, 0]), torch.tensor([4, 0])):
        images, _ = split.batch(positions)
        assert images[:, 0, 0, 0].tolist() == [104, 100]
    images.zero_()
    assert contents(split.batches(5)) == [[100, 101, 102, 103, 104]]
    with pytest.raises(IndexError):
        split.batch([5])


def test_batch_size_below_one_is_named_at_once():
    with pytest.raises(DataError, match="batch-size=0"):
        make_split(5).batches(0)


def test_class_counts_of_present_classes_only():
    assert make_split(1).class_counts() == {100 % 3: 1}
    assert make_split(0).class_counts() == {}


def test_normalise_maps_bytes_to_minus_one_to_one_without_touching_them():
    images = torch.tensor([0, 51, 255], dtype=torch.uint8)
    normalised = normalise(images)
    assert normalised.dtype == torch.float32
    torch.testing.assert_close(normalised, torch.tensor([-1.0, -0.6, 1.0]))
    assert images.tolist() == [0, 51, 255]


def test_importing_the_package_is_cheap():
    heavy = ("torch", "torchvision", "sklearn", "datasets", "flwr_datasets", "pandas")
    code = f"import sys, data; print([name for name in {heavy!r} if name in sys.modules])"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"
