"""Tables by name: whose rows they are, what their columns mean, and the real figures of what is published."""

from pathlib import Path

import numpy as np
import pytest

import pflego
from pflego import UserError
from pflego.data.check import examine
from pflego.data.named_tables import TABLES
from pflego.data.sets.catalogue import KNOWN

pytest.importorskip("pyarrow")


def test_heart_is_four_hospitals_with_codes_as_categories_and_gaps_marked() -> None:
    federation = pflego.load("heart")
    assert list(federation.ids) == ["cleveland", "hungarian", "switzerland", "va"]
    sizes = [len(client.x_train) + len(client.x_test) for client in federation]
    assert sizes == [303, 294, 123, 200]  # UCI's counts
    assert federation.schema is not None
    kinds = {feature.name: feature for feature in federation.schema.features}
    assert kinds["cp"].categories == ("1", "2", "3", "4")
    assert kinds["thal"].categories == ("3", "6", "7")
    assert kinds["ca"].gap
    assert not kinds["age"].gap
    start = sum(feature.width for feature in federation.schema.features[: list(kinds).index("ca")])
    missing = [
        int(client.x_train[:, start + 1].sum() + client.x_test[:, start + 1].sum()) for client in federation
    ]
    assert missing == [4, 291, 118, 198]  # UCI's question marks
    ill = [int((c.y_train == 1).sum() + (c.y_test == 1).sum()) for c in federation]
    assert ill == [139, 106, 115, 149]  # num > 0


def test_nothing_looks_wrong_with_what_is_known_of_heart() -> None:
    assert examine(pflego.load("heart")).warnings == []


def test_what_is_listed_of_heart_is_so() -> None:
    federation, entry = pflego.load("heart"), KNOWN["heart"]
    assert federation.samples == entry.train
    assert sum(len(client.x_test) for client in federation) == entry.test
    assert tuple(federation[0].x_train.shape[1:]) == tuple(entry.shape)
    assert federation.schema is not None
    assert federation.schema.class_names == tuple(entry.class_names)


def test_some_of_what_is_known_may_be_said_otherwise() -> None:
    with pytest.warns(UserWarning, match="left out"):
        whole = pflego.load("heart", gaps="drop", drop=["ca", "thal", "slope"], test_share=0.5)
    assert whole.schema is not None
    assert [feature.name for feature in whole.schema.features if feature.gap] == []
    assert "ca" not in [feature.name for feature in whole.schema.features]
    with pytest.warns(UserWarning, match="left out"):
        again = pflego.load("heart", gaps="drop", drop=["ca", "thal", "slope"], test_share=0.5, clients=4)
    assert again.fingerprint() == whole.fingerprint()
    for wrong in ({"label": "age"}, {"column": "sex"}, {"drop": ["hospital"]}, {"clients": 5}, {"window": 3}):
        with pytest.raises(UserError):
            pflego.load("heart", **wrong)


EXAM = """\
"",school,normexam,schgend,schavg,vr,intake,standLRT,sex,type,student
"1",7,0.25,mixed,0.1,mid 50%,bottom 25%,0.6,F,Mxd,143
"2",7,0.5,mixed,0.1,mid 50%,top 25%,0.2,M,Mxd,145
"3",9,-1.5,girls,0.3,top 25%,mid 50%,-1.5,F,Sngl,12
"4",9,1.5,girls,0.3,top 25%,mid 50%,-0.5,F,Sngl,13
"""


def test_schools_are_read_from_any_copy_and_their_bands_have_an_order(tmp_path: Path) -> None:
    (tmp_path / "Exam.csv").write_text(EXAM)
    federation = pflego.load("schools", data_dir=tmp_path, scale=False, test_share=0)
    assert list(federation.ids) == [7, 9]
    assert federation.schema is not None
    names = [feature.name for feature in federation.schema.features]
    assert names == list(TABLES["schools"].inputs)
    start = sum(feature.width for feature in federation.schema.features[: names.index("intake")])
    assert federation[0].x_train[:, start].tolist() == [0, 2]
    assert federation[0].y_train.tolist() == [0.25, 0.5]


def test_schools_that_are_nowhere_are_asked_for(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"Put Hsb82\.csv into a folder .* It is at https://"):
        pflego.load("schools-hsb82")
    (tmp_path / "Exam.csv").write_text("school,normexam\n1,2\n")
    with pytest.raises(UserError, match="has no column"):
        pflego.load("schools", data_dir=tmp_path)


def test_a_table_of_the_name_in_the_data_folder_comes_first(tmp_path: Path) -> None:
    lines = Path(str(pflego.data.named_tables.place_of("heart", None))).read_text().splitlines()
    (tmp_path / "heart.csv").write_text("\n".join([lines[0], *lines[1:40], *lines[-40:]]))
    federation = pflego.load("heart", data_dir=tmp_path)
    assert list(federation.ids) == ["cleveland", "va"]
    assert federation.source["data_dir"] == str(tmp_path)


def test_inputs_are_scaled_by_all_clients_training_rows() -> None:
    federation = pflego.load("heart")
    ages = np.concatenate([client.x_train[:, 0].double().numpy() for client in federation])
    assert ages.mean() == pytest.approx(0, abs=1e-6)
    assert ages.std() == pytest.approx(1, abs=1e-6)
