"""The run-config key ``models``: group, list, map."""

from __future__ import annotations

import pytest

from models import FORMER_GROUPS, GROUPS, ModelError, assign_model, list_models, resolve_models


def test_groups_hold_registered_models_only() -> None:
    for group, members in GROUPS.items():
        assert resolve_models(f" {group} ") == members
        assert set(members) <= set(list_models())


def test_a_list_is_cycled_over_client_ids() -> None:
    text = "cnn1, resnet18 ,cnn2"
    assert resolve_models(text) == ("cnn1", "resnet18", "cnn2")
    assigned = [assign_model(text, client) for client in range(5)]
    assert assigned == ["cnn1", "resnet18", "cnn2", "cnn1", "resnet18"]


def test_a_former_name_of_a_group_still_means_it() -> None:
    assert FORMER_GROUPS == {"cnn5": "five-cnns"}
    assert resolve_models(" cnn5 ") == GROUPS["five-cnns"] == resolve_models("five-cnns")


def test_cnn5_is_a_group_alone_and_a_model_in_a_list_or_map() -> None:
    assert assign_model("cnn5", 0) == "cnn1"
    assert resolve_models("cnn1,cnn5") == ("cnn1", "cnn5")
    assert assign_model("*=cnn5", 0) == "cnn5"


def test_a_map_names_clients_and_all_others() -> None:
    text = "0=cnn1, 1 = resnet18, 07=cnn1, *=cnn2"
    assert resolve_models(text) == ("cnn1", "resnet18", "cnn2")
    assigned = {client: assign_model(text, client) for client in (0, 1, 2, 7)}
    assert assigned == {0: "cnn1", 1: "resnet18", 2: "cnn2", 7: "cnn1"}


def test_a_map_without_others_names_the_client_left_out() -> None:
    with pytest.raises(ModelError, match=r"client 4 has no model.*add '4=<model>'"):
        assign_model("0=cnn1", 4)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("cnn1, resnt18", r"entry 'resnt18'.*did you mean resnet18.*python -m models"),
        ("cnn1, nowhere_at_all:f", r"entry 'nowhere_at_all:f'.*cannot import"),
        ("cnn1, htm10", r"entry 'htm10'.*a group stands alone"),
        ("cnn1,,cnn2", r"empty entry; name a group"),
        ("", r"empty entry; name a group"),
        ("0=cnn1, cnn2", r"entry 'cnn2'.*in a map every entry reads"),
        ("a=cnn1", r"entry 'a=cnn1'.*in a map every entry reads"),
        ("0=cnn9, *=cnn1", r"entry '0=cnn9'.*'cnn9' is unknown"),
        ("0=cnn1, 0=cnn2", r"client 0 has two models"),
        ("*=cnn1, *=cnn2", r"client \* has two models"),
    ],
)
def test_errors_name_the_entry(text: str, message: str) -> None:
    with pytest.raises(ModelError, match=message):
        resolve_models(text)
    with pytest.raises(ModelError, match=message):
        assign_model(text, 0)


def test_negative_clients_are_refused() -> None:
    with pytest.raises(ModelError, match="client id -1"):
        assign_model("cnn1", -1)
