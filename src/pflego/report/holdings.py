"""A federation as a picture: who holds how much of which class, and what the classes look like."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from io import BytesIO
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from pflego.errors import SettingError
from pflego.federation.roster import Federation
from pflego.files import make_folder, write_atomically

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Image = npt.NDArray[np.float64]

_FORMATS = [".png", ".svg", ".pdf"]
_BINS = 10  # of the targets of a regression
_MANY = 70  # classes; of more, only some have examples
_SOME = 28
_INK, _PALE, _NOBODY, _GREY = "#1f5a94", "#a9c9e6", "#f6f6f3", "#555555"


@dataclass(frozen=True)
class Holdings:
    """Training samples per client and class, and test samples per client; the classes by name."""

    train: npt.NDArray[np.int64]  # (clients, classes)
    test: npt.NDArray[np.int64]  # (clients,)
    clients: list[str]
    classes: list[str]
    axis: str


def draw(
    federation: Federation,
    path: Path,
    *,
    title: str,
    class_names: Sequence[str] = (),
    picture: Sequence[int] = (),
) -> Path:
    """Draw a map of clients and classes, the samples of each client and, of images, examples of the classes.

    `picture` is the shape of a sample as an image, where that is not its own.
    """
    check(path)
    import matplotlib as mpl

    mpl.use("agg")
    from matplotlib import pyplot as plt

    content = BytesIO()
    with mpl.rc_context({"font.size": 8, "svg.hashsalt": "pflego", "axes.edgecolor": "#bbbbbb"}):
        figure = _figure(holdings(federation, class_names), examples(federation, picture), title)
        figure.savefig(content, dpi=150, format=path.suffix.lower().lstrip("."), facecolor="white")
        plt.close(figure)
    make_folder(path.parent)
    write_atomically(path, content.getvalue())
    return path


def check(path: Path) -> None:
    """Refuse a file that cannot be drawn, before anything else is done."""
    if path.suffix.lower() not in _FORMATS:
        raise SettingError(f"cannot draw {path}: its name must end in {', '.join(_FORMATS)}")
    try:
        import matplotlib  # noqa: F401
    except ModuleNotFoundError as error:
        raise SettingError("for pictures: pip install 'pflego[plots]'") from error


def holdings(federation: Federation, class_names: Sequence[str] = ()) -> Holdings:
    """Count who holds what. A regression has bins between its least and its greatest target for classes."""
    train = [client.y_train.numpy() for client in federation]
    if federation.classes is None:
        targets = [labels.reshape(len(labels), -1)[:, 0] for labels in train]
        edges = np.linspace(min(t.min() for t in targets), max(t.max() for t in targets), _BINS + 1)
        counts = [np.histogram(t, edges)[0] for t in targets]
        names, axis = [f"{(a + b) / 2:.2g}" for a, b in pairwise(edges)], "target"
    else:
        numbers = np.array(federation.classes)
        counts = [np.bincount(np.searchsorted(numbers, own), minlength=len(numbers)) for own in train]
        known = len(class_names) > numbers.max()
        names, axis = [class_names[n] if known else str(n) for n in numbers.tolist()], "class"
    tested = np.array([len(client.y_test) for client in federation])
    ids = [str(client_id).replace("_", " ") for client_id in federation.ids]
    return Holdings(np.stack(counts), tested, ids, names, axis)


def examples(federation: Federation, picture: Sequence[int] = ()) -> list[list[Image]]:
    """List a few images per class, in order, or of some of very many classes. Nothing of other data.

    Where clients see different things, those of a class come from as many clients.
    """
    shape = tuple(picture or federation[0].x_train.shape[1:])
    if federation.classes is None or not (len(shape) == 2 or (len(shape) == 3 and shape[-1] in (1, 3))):
        return []
    shown = federation.classes
    if len(shown) > _MANY:
        shown = [shown[k] for k in np.linspace(0, len(shown) - 1, _SOME).astype(int)]
    shifted = "shift" in federation.source
    each = 3 if len(shown) > _MANY // 2 else 6 if shifted else 4
    found: dict[int, list[Image]] = {number: [] for number in shown}
    for client in federation:
        for number in set(client.classes.tolist()) & {n for n, own in found.items() if len(own) < each}:
            most = 1 if shifted else each - len(found[number])
            places = (client.y_train == number).nonzero().flatten()[:most]
            found[number] += [_image(client.x_train[place].numpy(), shape) for place in places]
        if all(len(own) == each for own in found.values()):
            break
    return list(found.values())


def _image(sample: npt.NDArray[np.generic], shape: tuple[int, ...]) -> Image:
    """Turn a sample into red, green and blue from 0 to 1; grey ones as ink on paper."""
    values = sample.reshape(shape).astype(np.float64)
    values = values / 255 if sample.dtype == np.uint8 else np.clip(values, 0, 1)
    if shape[-1] == 3 and len(shape) == 3:
        return values
    return np.repeat(1 - values.reshape(*shape[:2], 1), 3, axis=2)


def _figure(held: Holdings, rows: list[list[Image]], title: str) -> Figure:
    """Put the parts where they belong; all lengths in inches."""
    from matplotlib import pyplot as plt

    clients, classes = held.train.shape
    wide = 10.5 if classes > _MANY // 2 else 6.2
    left = 0.45 + 0.055 * max(len(name) for name in held.clients)
    bars, gap, right, below, above = 1.6, 0.15, 0.3, 0.6, 0.62
    tall = float(np.clip(0.145 * clients, 2.2, 8))
    tile = wide / max(1, len(rows))
    strip = tile * max((len(own) for own in rows), default=0)
    width = left + wide + gap + bars + right
    height = below + tall + (strip + 0.1 if rows else 0) + above
    figure = plt.figure(figsize=(width, height))

    def axes(x: float, y: float, w: float, h: float) -> Axes:
        return figure.add_axes((x / width, y / height, w / width, h / height))

    _draw_map(axes(left, below, wide, tall), held, tall / clients)
    _draw_bars(axes(left + wide + gap, below, bars, tall), held)
    _draw_scale(axes(left + wide + gap + 0.35, 0.3, bars - 0.7, 0.07), held)
    if rows:
        _draw_examples(axes(left, below + tall + 0.1, wide, strip), rows)
        if len(rows) < classes:
            x, y = (left + wide + gap) / width, 1 - above / height
            figure.text(x, y, f"{len(rows)} of the\n{classes:,} classes", color=_GREY, va="top")
    figure.text(left / width, 1 - 0.2 / height, title, size=11, weight="bold", va="top")
    return figure


def _colours(held: Holdings) -> dict[str, object]:
    """Scale colours from pale for a single sample to dark for the most that anybody has of a class."""
    import matplotlib as mpl
    from matplotlib.colors import LinearSegmentedColormap

    colours = mpl.colormaps["Blues"](np.linspace(0.18, 1, 256))
    scale = LinearSegmentedColormap.from_list("holdings", colours.tolist()).with_extremes(bad=_NOBODY)
    return {"cmap": scale, "vmin": 1, "vmax": max(2, int(held.train.max()))}


def _draw_map(axis: Axes, held: Holdings, row: float) -> None:
    clients, classes = held.train.shape
    order = np.arange(classes)
    if classes > _MANY:  # those of one client beside each other
        order = np.argsort(held.train.argmax(axis=0), kind="stable")
    counts = np.ma.masked_equal(held.train[:, order], 0)
    axis.imshow(counts, aspect="auto", interpolation="nearest", **_colours(held))  # type: ignore[arg-type]
    if classes <= _MANY:
        axis.set_xticks(range(classes), held.classes)
        axis.set_xlabel(held.axis)
    else:
        axis.set_xticks([])
        axis.set_xlabel(f"{classes:,} classes, in the order of the clients that hold them")
    step = 1 if row >= 0.1 else -(-clients // 20)
    axis.set_yticks(range(0, clients, step), held.clients[::step], size=7)
    axis.set_ylabel("client")
    axis.tick_params(length=0, colors=_GREY)
    if classes <= _MANY and row >= 0.1:
        axis.set_xticks(np.arange(0.5, classes - 1), minor=True)
        axis.set_yticks(np.arange(0.5, clients - 1), minor=True)
        axis.grid(which="minor", color="white", linewidth=0.8)
        axis.tick_params(which="minor", length=0)
    axis.spines[:].set_visible(False)


def _draw_bars(axis: Axes, held: Holdings) -> None:
    places, train = np.arange(len(held.clients)), held.train.sum(axis=1)
    thick = 0.72 if len(places) <= 100 else 1.0
    axis.barh(places, train, thick, color=_INK, label="training")
    axis.barh(places, held.test, thick, left=train, color=_PALE, label="test")
    axis.set_ylim(len(places) - 0.5, -0.5)
    axis.set_yticks([])
    axis.locator_params(axis="x", nbins=3)
    axis.tick_params(length=0, colors=_GREY, top=True, labeltop=True, bottom=False, labelbottom=False)
    axis.xaxis.set_major_formatter("{x:,.0f}")
    axis.legend(
        title="samples",
        title_fontsize=8,
        fontsize=7,
        loc="lower center",
        bbox_to_anchor=(0.5, 1),
        borderaxespad=1.6,
        ncols=2,
        columnspacing=0.9,
        handlelength=0.8,
        frameon=False,
        labelcolor=_GREY,
    )
    axis.grid(axis="x", color="white", linewidth=0.6)
    axis.spines[:].set_visible(False)


def _draw_scale(axis: Axes, held: Holdings) -> None:
    """Draw the key to the map's colours."""
    look = _colours(held)
    axis.imshow(np.linspace(0, 1, 256)[None], aspect="auto", cmap=look["cmap"])  # type: ignore[arg-type]
    axis.set_xticks([0, 255], ["1", f"{look['vmax']:,}"])
    axis.set_yticks([])
    axis.tick_params(length=0, labelsize=7, colors=_GREY)
    axis.set_title("in a cell", size=7, color=_GREY, pad=2)
    axis.spines[:].set_visible(False)


def _draw_examples(axis: Axes, rows: list[list[Image]]) -> None:
    """Draw one column of images per class, so that they stand above the columns of the map."""
    tall, wide = rows[0][0].shape[:2]
    margin = max(1, round(wide / 14))
    most = max(len(own) for own in rows)
    sheet = np.ones((most * (tall + 2 * margin), len(rows) * (wide + 2 * margin), 3))
    for column, own in enumerate(rows):
        for line, image in enumerate(own):
            top, left = line * (tall + 2 * margin) + margin, column * (wide + 2 * margin) + margin
            sheet[top : top + tall, left : left + wide] = image
    axis.imshow(sheet, aspect="auto", interpolation="antialiased")
    axis.set_axis_off()
