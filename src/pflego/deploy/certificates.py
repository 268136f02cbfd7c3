"""Certificates and keys for a trial: an authority of its own, the server's certificate, a key for each site.

A real deployment takes the server's certificate from the authority that its organisation trusts.
"""

from __future__ import annotations

import datetime
import ipaddress
from collections.abc import Sequence
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from pflego.errors import FolderError, SettingError
from pflego.files import make_folder, write_atomically

LOOPBACK = ("localhost", "127.0.0.1")  # where the server reaches itself
_DAYS = 365


def write_certificates(folder: Path, hosts: Sequence[str], *, days: int = _DAYS) -> list[Path]:
    """Write ca.crt, ca.key, server.pem and server.key, good for a server that is reached by these names.

    They are good on the server itself too, by its loopback address: the proxy and whoever gives commands use that.
    """
    if not hosts:
        raise SettingError("name the server as its sites will reach it: --host server.example.org")
    names = [_alternative(host) for host in dict.fromkeys([*hosts, *LOOPBACK])]
    ca_key, server_key = ec.generate_private_key(ec.SECP384R1()), ec.generate_private_key(ec.SECP384R1())
    ca_name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "pflego trial authority")])
    ca = (
        _certificate(ca_name, ca_name, ca_key.public_key(), days)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(signs=True), critical=True)
        .sign(ca_key, hashes.SHA384())
    )
    server = (
        _certificate(
            x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, hosts[0][:64])]),
            ca_name,
            server_key.public_key(),
            days,
        )
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(signs=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(ca_key.public_key()), critical=False
        )
        .sign(ca_key, hashes.SHA384())
    )
    return _write(
        folder,
        {
            "ca.crt": ca.public_bytes(serialization.Encoding.PEM),
            "server.pem": server.public_bytes(serialization.Encoding.PEM),
        },
        private={
            "ca.key": _private(ca_key, serialization.PrivateFormat.PKCS8),
            "server.key": _private(server_key, serialization.PrivateFormat.PKCS8),
        },
    )


def write_key(path: Path) -> list[Path]:
    """Write a site's key pair: the private key, which stays there, and <path>.pub, which the server registers."""
    key = ec.generate_private_key(ec.SECP384R1())
    public = key.public_key().public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)
    return _write(
        path.parent,
        {f"{path.name}.pub": public + b"\n"},
        private={path.name: _private(key, serialization.PrivateFormat.OpenSSH)},
    )


def _alternative(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        pass
    try:
        return x509.DNSName(host)
    except ValueError as error:
        raise SettingError(f"{host!r} is neither a name nor an address of a machine: {error}") from error


def _certificate(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey, days: int
) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(hours=1))  # clocks differ
        .not_valid_after(now + datetime.timedelta(days=days))
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
    )


def _usage(*, signs: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=True,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=signs,
        crl_sign=signs,
        encipher_only=False,
        decipher_only=False,
    )


def _private(key: ec.EllipticCurvePrivateKey, kind: serialization.PrivateFormat) -> bytes:
    return key.private_bytes(serialization.Encoding.PEM, kind, serialization.NoEncryption())


def _write(folder: Path, public: dict[str, bytes], *, private: dict[str, bytes]) -> list[Path]:
    """Write files that are not there yet; private ones are for their owner's eyes from the first byte on."""
    make_folder(folder)
    files = {**private, **public}
    for name in files:
        if (folder / name).exists():
            raise FolderError(f"{folder / name} is there already: a key is not replaced")
    for name, content in files.items():
        write_atomically(folder / name, content, private=name in private)
    return [folder / name for name in files]
