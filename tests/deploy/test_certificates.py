from __future__ import annotations

import socket
import ssl
import stat
import threading
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import load_ssh_private_key, load_ssh_public_key

import pflego
from pflego.deploy.certificates import write_certificates, write_key


def handshake(folder: Path, name: str, authority: Path) -> str:
    """Connect to a server with these certificates by a name; give the version of TLS that came of it."""
    theirs = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    theirs.load_cert_chain(folder / "server.pem", folder / "server.key")
    ours = ssl.create_default_context(cafile=authority)
    near, far = socket.socketpair()

    def serve() -> None:
        try:
            with theirs.wrap_socket(far, server_side=True) as end:
                end.recv(1)
        except (ssl.SSLError, OSError):
            far.close()

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        with ours.wrap_socket(near, server_hostname=name) as end:
            return str(end.version())
    finally:
        near.close()
        thread.join()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("certs")
    write_certificates(path / "a", ["server.example.org", "10.0.0.5"])
    write_certificates(path / "b", ["server.example.org"])
    return path


@pytest.mark.parametrize("name", ["server.example.org", "10.0.0.5", "localhost", "127.0.0.1"])
def test_a_server_is_known_by_its_names(name: str, folder: Path) -> None:
    assert handshake(folder / "a", name, folder / "a" / "ca.crt") == "TLSv1.3"


@pytest.mark.parametrize(
    ("name", "authority"), [("other.example.org", "a"), ("10.0.0.6", "a"), ("server.example.org", "b")]
)
def test_another_name_or_another_authority_is_refused(name: str, authority: str, folder: Path) -> None:
    with pytest.raises(ssl.SSLCertVerificationError):
        handshake(folder / "a", name, folder / authority / "ca.crt")


def test_private_keys_are_their_owners_alone_and_are_not_replaced(folder: Path, tmp_path: Path) -> None:
    private, public = write_key(tmp_path / "site")
    other, _ = write_key(tmp_path / "site.pem")  # a name that a public certificate might have, too
    for path in (folder / "a" / "server.key", folder / "a" / "ca.key", private, other):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
    before = private.read_bytes()
    with pytest.raises(pflego.FolderError, match="a key is not replaced"):
        write_key(tmp_path / "site")
    with pytest.raises(pflego.FolderError, match="a key is not replaced"):
        write_certificates(folder / "a", ["x"])
    assert private.read_bytes() == before
    assert public.name == "site.pub"


def test_a_sites_key_is_one_that_flower_takes(tmp_path: Path) -> None:
    private, public = write_key(tmp_path / "site")
    key = load_ssh_private_key(private.read_bytes(), password=None)
    assert isinstance(key, ec.EllipticCurvePrivateKey)
    other = load_ssh_public_key(public.read_bytes())
    assert isinstance(other, ec.EllipticCurvePublicKey)
    assert key.public_key().public_numbers() == other.public_numbers()


@pytest.mark.parametrize("hosts", [[], ["müller.example"]])
def test_a_server_needs_a_name(hosts: list[str], tmp_path: Path) -> None:
    with pytest.raises(pflego.UserError, match="name"):
        write_certificates(tmp_path / "certs", hosts)
    assert not (tmp_path / "certs").exists()
