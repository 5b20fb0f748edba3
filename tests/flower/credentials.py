"""A certificate authority, a server certificate and SuperNode keys, made for one trial."""

import datetime
import ipaddress
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

PEM = serialization.Encoding.PEM
PLAIN = serialization.NoEncryption()


def authority(place: Path) -> Path:
    """ca.pem, server.pem and server.key in a directory; gives the CA's file."""
    place.mkdir(parents=True)
    ca_key, key = ec.generate_private_key(ec.SECP384R1()), ec.generate_private_key(ec.SECP384R1())
    ca = _certificate("trial CA", ca_key, ca_key, "trial CA", is_ca=True)
    server = _certificate("localhost", key, ca_key, "trial CA", is_ca=False)
    (place / "ca.pem").write_bytes(ca.public_bytes(PEM))
    (place / "server.pem").write_bytes(server.public_bytes(PEM))
    private = key.private_bytes(PEM, serialization.PrivateFormat.PKCS8, PLAIN)
    (place / "server.key").write_bytes(private)
    return place / "ca.pem"


def _certificate(name, key, signer, issuer, *, is_ca: bool) -> x509.Certificate:
    named = [x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, n)]) for n in (name, issuer)]
    today = datetime.datetime.now(datetime.UTC)
    hosts = [x509.DNSName("localhost"), x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]
    builder = (
        x509.CertificateBuilder()
        .subject_name(named[0])
        .issuer_name(named[1])
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(today - datetime.timedelta(days=1))
        .not_valid_after(today + datetime.timedelta(days=2))
        .add_extension(x509.BasicConstraints(ca=is_ca, path_length=None), critical=True)
        .add_extension(x509.SubjectAlternativeName(hosts), critical=False)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key()), critical=False
        )
    )
    if is_ca:
        usage = x509.KeyUsage(True, False, False, False, False, True, True, False, False)
        builder = builder.add_extension(usage, critical=True)
    return builder.sign(signer, hashes.SHA384())


def node_key(path: Path) -> bytes:
    """A SuperNode's private key in OpenSSH's format, the public one beside it; the latter as PEM."""
    key = ec.generate_private_key(ec.SECP384R1())
    path.write_bytes(key.private_bytes(PEM, serialization.PrivateFormat.OpenSSH, PLAIN))
    path.chmod(0o600)
    public = key.public_key()
    formats = serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH
    path.with_suffix(".pub").write_bytes(public.public_bytes(*formats))
    return public.public_bytes(PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
