"""A light client as a site on Flower: a SuperNode, and a worker that loads neither torch nor pflego."""
