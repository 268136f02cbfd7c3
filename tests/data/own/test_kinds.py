"""Columns that are not what their values look like: codes, texts with an order, dates; and gaps that are marked."""

import datetime
import json
from pathlib import Path

import numpy as np
import pytest

import pflego
from pflego import UserError
from pflego.data.check import examine
from pflego.data.own.kinds import ColumnKinds
from pflego.data.problems import DataProblems, DataWarning
from pflego.data.schema import Schema
from pflego.errors import DataError

pa = pytest.importorskip("pyarrow")

VISITS = """\
ward,pain,kind,size,visit,label
a,2,1,small,2024-01-01,no
a,4,2.0,large,2024-01-03,yes
a,6,1.0,medium,2024-01-02,no
b,3,3,large,2023-12-31,yes
b,5,2,small,2024-01-01,no
"""
ORDER = "size=small<medium<large"


@pytest.fixture
def visits(tmp_path: Path) -> Path:
    path = tmp_path / "visits.csv"
    path.write_text(VISITS)
    return path


def rows(federation: pflego.Federation) -> np.ndarray[tuple[int, ...], np.dtype[np.float64]]:
    return np.concatenate([client.x_train.double().numpy() for client in federation])


def load(path: Path, **options: object) -> pflego.Federation:
    told = {"column": "ward", "test_share": 0, "drop": ["pain"], "scale": False, **options}
    return pflego.load(path, **told)  # type: ignore[arg-type]


def test_codes_are_categories_however_they_are_written(visits: Path) -> None:
    federation = load(visits, drop=["pain", "size", "visit"], category=["kind"])
    assert federation.schema is not None
    assert federation.schema.features[0].categories == ("1", "2", "3")
    assert rows(federation).tolist() == [[1, 0, 0], [0, 1, 0], [1, 0, 0], [0, 0, 1], [0, 1, 0]]


def test_texts_with_an_order_become_their_positions(visits: Path) -> None:
    federation = load(visits, drop=["pain", "kind", "visit"], ordered=[ORDER])
    assert rows(federation).tolist() == [[0], [2], [1], [2], [0]]


def test_dates_become_days(visits: Path) -> None:
    federation = load(visits, drop=["pain", "kind", "size"], date=["visit"])
    first = (datetime.date(2024, 1, 1) - datetime.date(1970, 1, 1)).days
    assert rows(federation).ravel().tolist() == [first, first + 2, first + 1, first - 1, first]


def test_the_time_of_the_day_is_a_fraction() -> None:
    moments = [datetime.datetime(1970, 1, 2, 12), None, datetime.datetime(1970, 1, 1, 6)]
    table = pa.table({"at": moments, "y": ["u", "v", "u"], "who": ["a", "a", "a"]})
    with pytest.warns(DataWarning):
        federation = load_table(table, date=["at"], gaps="indicator")
    assert rows(federation).tolist() == [[1.5, 0], [0.875, 1], [0.25, 0]]  # missing: the mean


def load_table(table: object, **options: object) -> pflego.Federation:
    told = {"column": "who", "label": "y", "test_share": 0, "scale": False, **options}
    return pflego.load(table, **told)  # type: ignore[arg-type]


def test_dates_are_refused_until_somebody_says_what_to_do(visits: Path) -> None:
    with pytest.raises(DataProblems, match=r"--date visit"):
        load(visits, category=["kind"])


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"category": ["kid"]}, "no input 'kid'"),
        ({"category": ["label"]}, "no input 'label'"),
        ({"category": ["kind"], "ordered": ["kind=1<2<3"]}, "two things at once"),
        ({"ordered": ["size"]}, "column=least<...<most"),
        ({"ordered": ["size=small<small"]}, "column=least<...<most"),
        ({"ordered": ["size=small<large"]}, "row 3: 'medium' in column 'size'"),
        ({"date": ["kind"]}, "no dates"),
        ({"date": ["size"]}, "cannot be read as dates"),
    ],
)
def test_what_cannot_be_is_refused(visits: Path, options: dict[str, list[str]], words: str) -> None:
    with pytest.raises(DataError, match=words):
        load(visits, **options)


def test_a_gap_has_an_input_of_its_own_and_the_mean_in_its_place(tmp_path: Path) -> None:
    path = tmp_path / "gaps.csv"
    path.write_text("ward,age,code,label\na,10,1,x\na,,2,y\na,30,,x\nb,50,1,y\n")
    with pytest.warns(DataWarning, match="marked"):
        federation = load(path, drop=None, category=["code"], gaps="indicator")
    # age, whether it is missing, code 1, code 2: a code that is missing is none of them
    assert rows(federation).tolist() == [[10, 0, 1, 0], [30, 1, 0, 1], [30, 0, 0, 0], [50, 0, 1, 0]]


def test_a_schema_reads_new_data_in_the_same_way_and_can_be_edited(visits: Path, tmp_path: Path) -> None:
    federation = load(visits, drop=["pain"], category=["kind"], ordered=[ORDER], date=["visit"], scale=None)
    schema = federation.schema
    assert schema is not None
    assert Schema.from_json(schema.to_json()) == schema
    new = tmp_path / "new.csv"
    new.write_text("size,kind,visit\nlarge,3.0,2024-01-03\n")
    expected = rows(federation)[[1]].copy()
    expected[0, :3] = [0, 0, 1]
    assert np.allclose(schema.read(new).x, expected)
    facts = json.loads(schema.to_json())
    order = next(one for one in facts["features"] if one["name"] == "size")
    order["categories"] = ["large", "medium", "small"]
    turned = Schema.from_json(json.dumps(facts))
    place = [feature.name for feature in turned.features].index("size")
    column = sum(feature.width for feature in turned.features[:place])
    feature = turned.features[place]
    assert turned.read(new).x[0, column] == pytest.approx(-feature.mean[0] / feature.scale[0])
    order["categories"] = ["large", "large"]
    with pytest.raises(UserError, match="no schema of pflego's"):
        Schema.from_json(json.dumps(facts))


def test_another_file_s_3_is_our_3_0(tmp_path: Path) -> None:
    schema = ColumnKinds.parse(["code"], None, None)
    table = pa.table({"code": ["1.0", "x"], "y": ["u", "v"], "who": ["a", "a"]})
    federation = load_table(table, category=schema.category)
    assert federation.schema is not None
    (tmp_path / "new.csv").write_text("code\n1\n")
    assert federation.schema.read(tmp_path / "new.csv").x.tolist() == [[1, 0]]


def test_numbers_that_may_be_codes_are_shown(visits: Path) -> None:
    dates = {"date": ["visit"], "ordered": [ORDER], "scale": None}
    guessed = examine(load(visits, **dates)).warnings
    assert any("kind (1, 2, 3)" in words and "--category" in words for words in guessed)
    told = examine(load(visits, category=["kind"], **dates)).warnings
    assert not any("--category" in words for words in told)
