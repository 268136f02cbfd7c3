"""Secure sums: the server learns the sum of contributions, and no single one (Bonawitz et al., 2017).

A sum takes four questions to each of n clients, called stages:

    keys     two public keys of this sum alone             to encrypt to this client, and to agree on masks with it
    shares   everybody's keys and weights (the roster)     shares of two secrets, encrypted to each other client
    masked   the weights to work with, others' shares      y_i = x_i + PRG(b_i) + sum_{j>i} PRG(s_ij) - sum_{j<i} ...
    unmask   whose y_i arrived, and whose did not          shares of b_i of the former, of the mask key of the latter

x_i is the client's weighted contribution in whole numbers modulo a power of two. The masks s_ij cancel in the sum over
those who arrived, the server rebuilds the rest from any `threshold` clients' shares, and what is left is the sum.

party.py is the client's half and tally.py the server's: pure functions without files or messages. site.py answers
Flower's messages with the first, rounds.py drives a round with the second. Under differential
privacy noise.py adds a share of the noise to x_i.

Nothing here is cryptography of our own: key agreement, Shamir shares and authenticated encryption are Flower's, masks
are ChaCha20 key streams and keys are derived by HKDF, both of `cryptography`.
"""
