"""A private CA, and a server's certificate that it has issued: for endpoints that use https."""

import ipaddress
import ssl
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

_VALID = timedelta(days=2)


class PrivateCa:
    """`bundle` is the file with its certificate in PEM; `context` is that of a server at `host`."""

    def __init__(self, folder: Path, name: str = "private-ca", host: str = "127.0.0.1"):
        own_key = ec.generate_private_key(ec.SECP256R1())
        key = ec.generate_private_key(ec.SECP256R1())
        names = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address(host))])
        authority = _builder(name, name, own_key).add_extension(
            x509.BasicConstraints(ca=True, path_length=0), critical=True
        )
        server = _builder("server", name, key).add_extension(names, critical=False)
        folder.mkdir(parents=True, exist_ok=True)
        self.bundle = folder / "ca.crt"
        self.bundle.write_bytes(_pem(authority.sign(own_key, hashes.SHA256())))
        chain = folder / "server.pem"
        private = key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
        chain.write_bytes(private + _pem(server.sign(own_key, hashes.SHA256())))
        self.context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.context.load_cert_chain(chain)


def _builder(subject: str, issuer: str, key: ec.EllipticCurvePrivateKey) -> x509.CertificateBuilder:
    now = datetime.now(UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, subject)]))
        .issuer_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, issuer)]))
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _VALID)
        .not_valid_after(now + _VALID)
    )


def _pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)
