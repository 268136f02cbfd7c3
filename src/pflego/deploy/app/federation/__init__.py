"""A federation on Flower, by pflego. A backbone of your own can live here too: model = "federation.mine:backbone"."""
