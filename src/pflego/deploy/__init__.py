"""What a federation across real machines needs besides pflego: a Flower app, certificates and keys, and a look at
what leaves a site.
"""
