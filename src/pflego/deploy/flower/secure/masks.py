"""Masks: ChaCha20 key streams, under keys that HKDF derives from what two clients agreed on, or from a seed."""

from __future__ import annotations

from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from flwr.common.secure_aggregation.crypto.symmetric_encryption import generate_shared_key

from pflego.deploy.flower.secure.fixed_point import Layout, Words

_KEY = 32  # bytes: 256 bits


def pair_mask(
    own: ec.EllipticCurvePrivateKey, other: ec.EllipticCurvePublicKey, layout: Layout, context: bytes
) -> Words:
    """Give the mask that two clients have in common, for one sum.

    context: what binds it to the run, round and question; with another one it is another mask.
    """
    return _stream(generate_shared_key(own, other), layout, b"pflego pair mask" + context)


def self_mask(seed: bytes, layout: Layout, context: bytes) -> Words:
    """Give the mask of a client's own, for one sum."""
    return _stream(seed, layout, b"pflego self mask" + context)


def _stream(secret: bytes, layout: Layout, purpose: bytes) -> Words:
    key = HKDF(hashes.SHA256(), _KEY, salt=None, info=purpose).derive(secret)
    # a nonce of zeros, since no key is used for two streams
    cipher = Cipher(algorithms.ChaCha20(key, bytes(16)), mode=None)
    return layout.unpack(cipher.encryptor().update(bytes(layout.size)))
