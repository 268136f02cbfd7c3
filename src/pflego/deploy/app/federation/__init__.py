"""A federation on Flower, by pflego. The server runs what is here; sites run the pflego that they have installed."""
