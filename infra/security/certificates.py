"""The certificate authority of a deployment, and the certificate of the broker."""

import ipaddress
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Self

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, load_pem_private_key
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

BROKER = "broker"
"""The name of the broker in its certificate. It is a super user of the authorizer (infra/kafka/secured.properties)."""

_AUTHORITY_LIFE = timedelta(days=3650)
_CERTIFICATE_LIFE = timedelta(days=397)
"""A year and a month, so that one renewal a year is enough."""

_RENEW_BEFORE = timedelta(days=30)

# The clocks of machines differ, but a new certificate must be valid on all of them at once.
_CLOCK_TOLERANCE = timedelta(minutes=5)


@dataclass(frozen=True, slots=True)
class Authority:
    """A certificate that clients trust, and its key."""

    certificate: x509.Certificate
    key: ec.EllipticCurvePrivateKey

    @classmethod
    def new(cls) -> Self:
        key, name = ec.generate_private_key(ec.SECP256R1()), _name("retail-loyalty authority")
        builder = (
            _builder(name, name, key.public_key(), _AUTHORITY_LIFE)
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(_usage(signs_certificates=True), critical=True)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        )
        return cls(builder.sign(key, hashes.SHA256()), key)

    @classmethod
    def load(cls, certificate: bytes, key: bytes) -> Self:
        """Load an authority from PEM. Raises ValueError if the text is not PEM or has another kind of key."""
        found = load_pem_private_key(key, password=None)
        if not isinstance(found, ec.EllipticCurvePrivateKey):
            raise ValueError("the key of the authority is not an elliptic curve key: restore the file")  # noqa: TRY004
        return cls(x509.load_pem_x509_certificate(certificate), found)

    def certificate_pem(self) -> bytes:
        return self.certificate.public_bytes(Encoding.PEM)

    def key_pem(self) -> bytes:
        return _pem(self.key)

    def broker_pem(self, hosts: Sequence[str]) -> bytes:
        """A new key and certificate of the broker for these hosts (names or addresses), as PEM in the form of Kafka.

        Brokers and controllers use the certificate as servers and as clients.
        """
        key = ec.generate_private_key(ec.SECP256R1())
        issuer = self.certificate.subject
        builder = (
            _builder(_name(BROKER), issuer, key.public_key(), _CERTIFICATE_LIFE)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(_usage(signs_certificates=False), critical=True)
            .add_extension(
                x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]),
                critical=False,
            )
            # Strict clients, such as Python 3.13, require the id of the signing key.
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(self.key.public_key()), critical=False)
            .add_extension(x509.SubjectAlternativeName([_host(host) for host in hosts]), critical=False)
        )
        return _pem(key) + builder.sign(self.key, hashes.SHA256()).public_bytes(Encoding.PEM)


def is_signed(pem: bytes, authority: x509.Certificate, hosts: Sequence[str], now: datetime | None = None) -> bool:
    """Whether the authority has signed the certificate for all these hosts, and for at least another 30 days."""
    certificate = x509.load_pem_x509_certificate(pem)
    try:
        certificate.verify_directly_issued_by(authority)
    except Exception:  # noqa: BLE001  # each cause has its own exception
        return False
    lasts = certificate.not_valid_after_utc - (now or datetime.now(UTC)) > _RENEW_BEFORE
    return lasts and {_host(host) for host in hosts} <= set(_names(certificate))


def end_of(pem: bytes) -> datetime:
    """When a certificate ends, in UTC."""
    return x509.load_pem_x509_certificate(pem).not_valid_after_utc


def hosts_of(pem: bytes) -> list[str]:
    """The names and addresses in a certificate."""
    return [str(name.value) for name in _names(x509.load_pem_x509_certificate(pem))]


def _names(certificate: x509.Certificate) -> x509.SubjectAlternativeName:
    return certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey, life: timedelta
) -> x509.CertificateBuilder:
    now = datetime.now(UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _CLOCK_TOLERANCE)
        .not_valid_after(now + life)
    )


def _name(common_name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common_name)])


def _host(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        if ":" in host:
            raise ValueError(f"{host} is neither a name nor an IP address: leave out the port") from None
        return x509.DNSName(host)


def _usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
