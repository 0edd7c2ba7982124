"""The gateway's own TLS: a context of at least TLS 1.2, and the certificate's hash that channel binding needs."""

import hashlib
import ssl
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from dpsql.errors import InvalidParameter

# RFC 5929: the hash of the certificate's signature, but SHA-256 where that is MD5 or SHA-1.
_SIGNATURE_HASHES: Final = {
    "1.2.840.113549.1.1.4": "sha256",  # RSA with MD5
    "1.2.840.113549.1.1.5": "sha256",  # RSA with SHA-1
    "1.2.840.113549.1.1.11": "sha256",
    "1.2.840.113549.1.1.12": "sha384",
    "1.2.840.113549.1.1.13": "sha512",
    "1.2.840.10045.4.1": "sha256",  # ECDSA with SHA-1
    "1.2.840.10045.4.3.2": "sha256",
    "1.2.840.10045.4.3.3": "sha384",
    "1.2.840.10045.4.3.4": "sha512",
}

_VERSION_TAG: Final = 0xA0
_UTC_TIME_TAG: Final = 0x17


@dataclass(frozen=True, slots=True)
class ServerTls:
    """A server's TLS.

    Attributes:
        context: What handshakes are made with.
        channel_binding: The tls-server-end-point value; None (no SCRAM-SHA-256-PLUS) where RFC 5929 defines none.
        expires: When the certificate ends.
        certificate: The file of the certificate.
        key: The file of its key.
    """

    context: ssl.SSLContext
    channel_binding: bytes | None
    expires: datetime
    certificate: Path
    key: Path

    def __reduce__(self) -> tuple[object, ...]:
        """Another process reads the files itself: the key is nowhere else."""
        return load_tls, (self.certificate, self.key)

    def renewed(self) -> "ServerTls":
        """The TLS context of the current files.

        Raises:
            InvalidParameter: As of `load_tls`.
        """
        return load_tls(self.certificate, self.key)


def load_tls(certificate: Path, key: Path) -> ServerTls:
    """Return the TLS of a certificate chain and its private key, both PEM files.

    Raises:
        InvalidParameter: If a file cannot be read, or the two do not belong together.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        # An encrypted key must fail here rather than ask for its passphrase on a terminal.
        context.load_cert_chain(certificate, key, password=lambda: "")
        text = certificate.read_text(encoding="ascii", errors="replace")
        begin = text.index(ssl.PEM_HEADER)
        leaf = ssl.PEM_cert_to_DER_cert(text[begin : text.index(ssl.PEM_FOOTER, begin) + len(ssl.PEM_FOOTER)])
    except (OSError, ValueError) as error:
        missing = [str(file) for file in (certificate, key) if not file.exists()]
        raise InvalidParameter(
            f"cannot load TLS certificate {certificate} and key {key}",
            detail=f"There is no file {missing[0]}." if missing else str(error),
            hint="Both must be PEM files. The key must belong to the certificate and have no passphrase.",
        ) from error
    return ServerTls(context, end_point_hash(leaf), expiry(leaf), certificate, key)


def end_point_hash(certificate: bytes) -> bytes | None:
    """Return the tls-server-end-point value of a DER certificate, or None where its signature names no single hash."""
    algorithm = _SIGNATURE_HASHES.get(_signature_algorithm(certificate))
    return None if algorithm is None else hashlib.new(algorithm, certificate).digest()


def expiry(certificate: bytes) -> datetime:
    """Return when a DER certificate ends: notAfter, in Validity, the fifth field of tbsCertificate (RFC 5280)."""
    outer, _ = _element(certificate)
    fields, _ = _element(outer)
    if fields[0] == _VERSION_TAG:
        _, fields = _element(fields)
    for _ in ("serialNumber", "signature", "issuer"):
        _, fields = _element(fields)
    validity, _ = _element(fields)
    _, after = _element(validity)
    text, _ = _element(after)
    form = "%y%m%d%H%M%SZ" if after[0] == _UTC_TIME_TAG else "%Y%m%d%H%M%SZ"
    return datetime.strptime(text.decode("ascii"), form).replace(tzinfo=UTC)


def _signature_algorithm(certificate: bytes) -> str:
    """Return the dotted OID in Certificate ::= SEQUENCE { tbsCertificate, signatureAlgorithm { OID … }, … }."""
    outer, _ = _element(certificate)
    _, behind_tbs = _element(outer)
    algorithm, _ = _element(behind_tbs)
    encoded, _ = _element(algorithm)
    arcs = [encoded[0] // 40, encoded[0] % 40]
    arc = 0
    for byte in encoded[1:]:
        arc = arc << 7 | byte & 0x7F
        if byte < 0x80:
            arcs.append(arc)
            arc = 0
    return ".".join(map(str, arcs))


def _element(der: bytes) -> tuple[bytes, bytes]:
    """Return the contents of the first DER element, and what stands behind it."""
    size, start = der[1], 2
    if size >= 0x80:
        start += size & 0x7F
        size = int.from_bytes(der[2:start], "big")
    return der[start : start + size], der[start + size :]
