"""Who somebody is in a secure sum: sites sign with their nodes' keys, and know each other's public ones.

Without that a site must take the server's word for whose keys it is told, and a server could be all the others.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any
from urllib.parse import quote

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec
from flwr.supercore.primitives.asymmetric import sign_message, verify_signature

from pflego.codec import MessageError
from pflego.deploy.flower.secure.roster import Roster, digest_of, keys_of
from pflego.deploy.flower.terms import Terms
from pflego.errors import FolderError, SettingError
from pflego.federation.roster import ClientId


class Identity:
    """A site's own key, and the public keys of the others.

    Parameters
    ----------
    terms
        `identity` is the file of its private key, and `peers` a folder with <client-id>.pub of every other client.
    """

    def __init__(self, terms: Terms) -> None:
        if not terms.peers or not terms.identity:
            raise SettingError(
                "the sums of this federation are signed: name a folder with <client-id>.pub of every client, "
                'peers="...", and this site\'s key, identity="..." (pflego deploy site does that), in the node config'
            )
        self._own = Path(terms.identity).expanduser()
        self._peers = Path(terms.peers).expanduser()

    def sign(self, facts: list[Any]) -> str:
        """Sign facts with the site's own key."""
        try:
            key = serialization.load_ssh_private_key(self._own.read_bytes(), password=None)
        except (OSError, ValueError, UnsupportedAlgorithm) as error:
            raise FolderError(f"cannot read this site's key {self._own}: {error}") from error
        if not isinstance(key, ec.EllipticCurvePrivateKey):
            raise FolderError(f"{self._own} is no key that pflego deploy key has made")
        return sign_message(key, digest_of(facts)).hex()

    def signed_by(self, client: ClientId, facts: list[Any], signature: str) -> bool:
        """Tell whether a client has signed facts."""
        try:
            return verify_signature(self._public(client), digest_of(facts), bytes.fromhex(signature))
        except ValueError as error:
            if isinstance(error, FolderError | MessageError):
                raise
            return False

    def check(self, roster: Roster) -> None:
        """Refuse a sum with keys that are not signed by whom they are said to be of."""
        for entry in roster.entries:
            facts = keys_of(roster.session, entry.client, entry.keys.encryption, entry.keys.mask)
            if not self.signed_by(entry.client, facts, entry.keys.signature):
                raise MessageError(f"the keys of client {entry.client!r} are not signed by it")

    def _public(self, client: ClientId) -> ec.EllipticCurvePublicKey:
        path = self._peers / f"{quote(str(client), safe='')}.pub"
        if not path.is_file():
            raise MessageError(f"client {client!r} is nobody whom this site knows: {path} is not there")
        try:
            key = serialization.load_ssh_public_key(path.read_bytes())
        except (OSError, ValueError, UnsupportedAlgorithm) as error:
            raise FolderError(f"cannot read {path}: {error}") from error
        if not isinstance(key, ec.EllipticCurvePublicKey):
            raise FolderError(f"{path} is no key that pflego deploy key has made")
        return key
