"""Clients of one run with tasks of their own: whose rows, which inputs, which targets."""

from dataclasses import replace

import numpy as np
import pytest
import torch

import data
from data import (
    AnnotatedDataset,
    DataError,
    DataSpec,
    TaskSplit,
    TextDataset,
    load_client_data,
    load_device_data,
    load_device_task_data,
    load_task_data,
    parse_task,
    parse_tasks,
    task_data,
)
from data.annotated import Texts, read_texts, resize_masks, write_texts
from data.split import mask_presence

IID = DataSpec(partition="iid", validation_fraction=0.2)
SIZE, CLASSES, COUNT, TRAIN = 6, 4, 120, 90


def tokenise(sentences):
    """Word lengths, three a sentence."""
    rows = [[len(word) for word in text.split()][:3] for text in sentences]
    return np.array([row + [0] * (3 - len(row)) for row in rows], dtype=np.int64).reshape(-1, 3)


def make_annotated(masked=None, **gone):
    """Image i is filled with i; its main class is i % 4, and it may have one other."""
    rows = np.arange(COUNT)
    labels = rows % CLASSES
    presence = np.eye(CLASSES, dtype=np.uint8)[labels]
    also = (rows // CLASSES) % CLASSES
    presence[rows, also] = 1
    masks = np.zeros((COUNT, SIZE, SIZE), dtype=np.uint8)
    masks[:, 4] = 1 + also[:, None]
    masks[:, :2] = 1 + labels[:, None, None]
    masks[:, 5] = 255
    fields = {
        "presence": presence,
        "masks": masks,
        "captions": ["one " + "x" * (row + 1) for row in rows],
        "masked": masked,
        **gone,
    }
    images = np.broadcast_to(rows.astype(np.uint8)[:, None, None, None], (COUNT, 1, SIZE, SIZE))
    names = ("a", "b", "c", "d")
    return AnnotatedDataset("scenes", images, labels, TRAIN, names, "f" * 16, **fields)


pytestmark = pytest.mark.usefixtures("private_cache")


@pytest.fixture
def use(monkeypatch):
    """Make the task code open these data sets, by name."""

    def install(**datasets):
        monkeypatch.setattr(task_data, "load_dataset", lambda spec: datasets[spec.dataset])

    return install


def open_all(tasks, count, spec=IID):
    entries = parse_tasks(tasks)
    return [load_task_data(spec, entries, client, count, tokenise) for client in range(count)]


def rows_of(client):
    parts = (client.train, client.validation, client.test)
    return np.concatenate([part.indices for part in parts])


# Sharing


def test_clients_of_one_data_set_use_each_row_once_whatever_their_task(use):
    use(scenes=make_annotated(), digits=replace(make_annotated(), name="digits"))
    tasks = "multilabel@scenes, classification, segmentation@scenes, text@scenes"
    clients = open_all(tasks, 8)
    for name in ("scenes", "digits"):
        rows = [rows_of(client) for client in clients if client.dataset.name == name]
        assert len(rows) == (6 if name == "scenes" else 2)
        assert sorted(np.concatenate(rows)) == list(range(COUNT))
    assert len({client.data_hash for client in clients}) == 8


def test_an_entry_without_data_set_means_the_runs_own_and_shares_it(use):
    use(scenes=make_annotated())
    clients = open_all("multilabel, text@scenes", 2, replace(IID, dataset="scenes"))
    assert sorted(np.concatenate([rows_of(c) for c in clients])) == list(range(COUNT))


def test_a_plain_task_on_one_data_set_has_the_rows_of_an_ordinary_run():
    spec = DataSpec("digits", partition="dirichlet", alpha=0.5, validation_fraction=0.1)
    for client in range(3):
        plain = load_client_data(spec, client, 3)
        task = load_task_data(spec, parse_tasks("classification"), client, 3, None)
        assert task.data_hash == plain.data_hash
        for mine, theirs in zip(task.train.batch([0, 5]), plain.train.batch([0, 5]), strict=True):
            assert torch.equal(mine, theirs)


def test_where_few_pictures_have_masks_segmentation_takes_those(use):
    masked = np.arange(COUNT) % 3 == 0
    use(scenes=make_annotated(masked))
    clients = open_all("segmentation@scenes, multilabel@scenes, classification@scenes", 6)
    segmented = np.concatenate([rows_of(c) for c in clients if c.task == "segmentation"])
    others = np.concatenate([rows_of(c) for c in clients if c.task != "segmentation"])
    assert sorted(segmented) == np.flatnonzero(masked).tolist()
    assert sorted(others) == np.flatnonzero(~masked).tolist()
    # Nobody segments: nothing is left unused.
    clients = open_all("multilabel@scenes, text@scenes", 2)
    assert sorted(np.concatenate([rows_of(c) for c in clients])) == list(range(COUNT))
    # Only official training rows are trained on where the test set is a global one.
    clients = open_all("segmentation@scenes, text@scenes", 2, replace(IID, test_split="global"))
    assert (clients[0].train.indices < TRAIN).all()
    assert clients[0].test.indices.tolist() == list(range(TRAIN, COUNT, 3))


def test_a_device_has_all_of_its_data(use):
    masked = np.arange(COUNT) % 3 == 0
    use(scenes=make_annotated(masked))
    device = load_device_task_data(IID, parse_task("multilabel@scenes"), None)
    assert sorted(rows_of(device)) == list(range(COUNT))
    assert device.test.indices.tolist() == list(range(TRAIN, COUNT))
    device = load_device_task_data(IID, parse_task("segmentation@scenes[1+2]"), None)
    assert set(rows_of(device)) <= set(np.flatnonzero(masked))
    assert device.num_classes == 2


def test_a_device_that_classifies_has_the_rows_of_an_ordinary_one():
    plain = load_device_data(DataSpec("digits"))
    task = load_device_task_data(DataSpec("digits"), parse_task("classification"), None)
    assert task.data_hash == plain.data_hash


# Inputs and targets


def test_multilabel_targets(use):
    use(scenes=make_annotated())
    (client,) = open_all("multilabel@scenes", 1)
    images, targets = client.train.batch([3, 0])
    rows = client.train.indices[[3, 0]]
    assert (images.shape, images.dtype) == ((2, 1, SIZE, SIZE), torch.uint8)
    assert images[:, 0, 0, 0].tolist() == rows.tolist()
    assert targets.dtype == torch.uint8
    for row, target in zip(rows, targets, strict=True):
        expected = {row % CLASSES, (row // CLASSES) % CLASSES}
        assert set(np.flatnonzero(target)) == expected
    with pytest.raises(DataError, match="no one label"):
        _ = client.train.labels
    assert (client.metric, client.num_classes, client.channels) == ("map", 4, 1)


def test_segmentation_targets(use):
    use(scenes=make_annotated())
    (client,) = open_all("segmentation@scenes", 1)
    _, masks = client.test.batch([0, 1])
    assert (masks.shape, masks.dtype) == ((2, SIZE, SIZE), torch.uint8)
    for row, mask in zip(client.test.indices[:2], masks, strict=True):
        assert (mask[:2] == 1 + row % CLASSES).all()
        assert (mask[2:4] == 0).all()
        assert (mask[5] == 255).all()
    assert (client.metric, client.num_classes) == ("miou", 4)


def test_text_targets(use):
    use(scenes=make_annotated())
    clients = open_all("text@scenes", 2)
    for client in clients:
        tokens, labels = client.train.batch(torch.tensor([1, 2]))
        assert (tokens.dtype, labels.dtype) == (torch.int64, torch.int64)
        rows = client.train.indices[[1, 2]]
        assert tokens.tolist() == [[3, row + 1, 0] for row in rows]
        assert labels.tolist() == (rows % CLASSES).tolist()
        assert (client.channels, client.image_size, client.metric) == (0, 0, "accuracy")


def test_only_the_clients_own_sentences_are_tokenised(use):
    use(scenes=make_annotated())
    seen = []

    def spy(sentences):
        seen.extend(sentences)
        return tokenise(sentences)

    client = load_task_data(IID, parse_tasks("text@scenes"), 0, 4, spy)
    assert sorted(len(text) - 5 for text in seen) == sorted(rows_of(client))


def test_class_counts_by_task(use):
    use(scenes=make_annotated())
    presence = make_annotated().presence
    for task in ("multilabel", "segmentation"):
        (client,) = open_all(f"{task}@scenes", 1)
        expected = presence[client.train.indices].sum(axis=0)
        assert client.train.class_counts() == dict(enumerate(expected))
    (client,) = open_all("classification@scenes", 1)
    assert client.train.class_counts() == {
        label: int((client.train.indices % CLASSES == label).sum()) for label in range(CLASSES)
    }


def test_splits_make_batches_in_the_order_of_ordinary_ones(use):
    use(scenes=make_annotated())
    (client,) = open_all("multilabel@scenes", 1)
    generator = torch.Generator().manual_seed(3)
    order = torch.randperm(len(client.train), generator=torch.Generator().manual_seed(3))
    images = torch.cat([batch for batch, _ in client.train.batches(7, generator)])
    assert images[:, 0, 0, 0].tolist() == client.train.indices[order.numpy()].tolist()


# Restrictions


def test_a_restriction_keeps_examples_of_its_classes_and_numbers_them_anew(use):
    use(scenes=make_annotated())
    classification, multilabel, segmentation, text = open_all(
        "classification@scenes[1+3], multilabel@scenes[1+3], segmentation@scenes[1+3],"
        "text@scenes[1+3]",
        4,
    )
    everyone = open_all("classification@scenes", 4)
    for position, client in enumerate((classification, multilabel, segmentation, text)):
        assert client.num_classes == 2
        assert client.class_names == ("b", "d")
        pool = rows_of(everyone[position])
        main, other = pool % CLASSES, (pool // CLASSES) % CLASSES
        kept = np.isin(main, [1, 3])
        if client.task in ("multilabel", "segmentation"):
            kept |= np.isin(other, [1, 3])
        assert sorted(rows_of(client)) == sorted(pool[kept])
    for client in (classification, text):
        _, labels = client.train.batch(np.arange(len(client.train)))
        assert labels.tolist() == (client.train.indices % CLASSES // 2).tolist()
        assert client.train.labels.tolist() == labels.tolist()
    _, targets = multilabel.train.batch([0, 1, 2])
    full = make_annotated()
    np.testing.assert_array_equal(targets, full.presence[multilabel.train.indices[:3]][:, [1, 3]])
    _, masks = segmentation.train.batch([0, 1, 2])
    before = full.masks[segmentation.train.indices[:3]]
    for old, new in ((0, 0), (1, 0), (2, 1), (3, 0), (4, 2), (255, 255)):
        assert (masks.numpy()[before == old] == new).all()
    counts = segmentation.train.class_counts()
    assert set(counts) == {0, 1}


def test_hash_tells_tasks_and_restrictions_apart(use):
    use(scenes=make_annotated())
    tasks = ("classification", "text", "multilabel", "segmentation", "multilabel[0-3]")
    entries = [task.replace("[", "@scenes[") if "[" in task else f"{task}@scenes" for task in tasks]
    hashes = [open_all(entry, 1)[0].data_hash for entry in entries]
    assert len(set(hashes)) == len(tasks)


# What cannot be had


@pytest.mark.parametrize(
    ("tasks", "expected"),
    [
        ("multilabel@digits", "client 0 (multilabel@digits): no multilabel on digits: digits has "),
        ("segmentation@digits", "digits has no masks here; write segmentation@scenes"),
        ("text@digits", "digits has no captions here; write text@scenes or text@tsv"),
        ("classification@digits[3+12]", "class 12 is out of range: digits has 10 classes, 0 to 9"),
    ],
)
def test_a_task_that_the_data_lacks_is_refused_with_owner_and_remedy(tasks, expected):
    with pytest.raises(DataError) as caught:
        open_all(tasks, 1)
    assert expected in str(caught.value)
    assert "client 0 (" in str(caught.value)
    with pytest.raises(DataError, match="this device"):
        load_device_task_data(IID, parse_task(tasks), tokenise)


def test_sentences_have_no_image_tasks(use):
    use(tsv=TextDataset("tsv", ["a b"] * 20, np.arange(20) % 2, 16, ("no", "yes"), "0" * 16))
    for task in ("classification", "multilabel", "segmentation"):
        with pytest.raises(DataError, match=r"tsv has sentences and no images; write text@tsv"):
            open_all(f"{task}@tsv", 1)
    (client,) = open_all("text@tsv", 1)
    assert (client.channels, client.image_size, client.num_classes) == (0, 0, 2)
    with pytest.raises(DataError, match="needs a text model"):
        load_task_data(IID, parse_tasks("text@tsv"), 0, 1, None)
    with pytest.raises(DataError, match=r"the tokeniser gave int64 \(1, 3\)"):
        load_task_data(IID, parse_tasks("text@tsv"), 0, 1, lambda s: tokenise(s[:1]))


def test_a_restriction_that_leaves_nothing_names_client_sizes_and_remedy(use):
    use(scenes=make_annotated())
    spec = replace(IID, partition="pathological", classes_per_client=1)
    tasks = ["classification@scenes[0+1]", "classification@scenes[2+3]"]
    entries = parse_tasks(", ".join(tasks))
    errors = []
    for client in range(4):
        try:
            load_task_data(spec, entries, client, 4, None)
        except DataError as error:
            errors.append(str(error))
    assert errors, "four clients of one class each: some do not get one of theirs"
    for error in errors:
        assert "none of the client's" in error
        assert "partition=pathological" in error
        assert "set partition=iid" in error


def test_too_many_clients_on_a_data_set_are_named(use):
    use(scenes=make_annotated())
    with pytest.raises(DataError, match=r"client 0 \(text@scenes\): scenes is shared by the 130"):
        load_task_data(IID, parse_tasks("text@scenes"), 0, 130, tokenise)


def test_an_id_out_of_range_is_refused():
    with pytest.raises(DataError, match="client-id=3 is out of range"):
        load_task_data(IID, parse_tasks("classification"), 3, 3, None)


# Pieces


def test_texts_are_mapped_and_behave_like_a_list(tmp_path):
    plain = ["", "eins", "zwei ä", "", "漢字"]
    write_texts(tmp_path, "words", plain)
    texts = read_texts(tmp_path, "words")
    assert list(texts) == plain
    assert (texts[-1], texts[1:3], len(texts)) == ("漢字", plain[1:3], 5)
    with pytest.raises(IndexError):
        texts[5]
    with pytest.raises(ValueError, match="cut off"):
        Texts(np.zeros(3, np.uint8), np.array([1, 4]))


def test_masks_resize_to_the_nearest_pixel():
    mask = np.arange(16, dtype=np.uint8).reshape(4, 4)
    assert resize_masks(mask, 2).tolist() == [[5, 7], [13, 15]]
    assert resize_masks(mask, 8)[::2, ::2].tolist() == mask.tolist()
    assert resize_masks(mask[:2], 4).tolist() == np.repeat(mask[:2], 2, axis=0).tolist()


def test_presence_of_masks_by_brute_force():
    masks = np.random.default_rng(0).integers(0, 256, (520, 2, 2), dtype=np.uint8)
    rows = np.arange(519, -1, -1)
    expected = [[c in masks[row] for c in range(1, 255)] for row in rows]
    np.testing.assert_array_equal(mask_presence(masks, rows), expected)


def test_an_ordinary_split_of_sentences_is_refused():
    texts = TextDataset("tsv", ["a"], np.zeros(1, np.int64), 1, ("x", "y"), "0" * 16)
    with pytest.raises(DataError, match="make a TaskSplit"):
        data.Split(texts, np.arange(1)).batch([0])
    assert issubclass(TaskSplit, data.Split)
