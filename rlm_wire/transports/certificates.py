"""TLS contexts and certificates for `tls://`. The ready-made contexts speak TLS 1.3 only.

Which context is safe when: a token authenticates both sides and is bound to the server's certificate
(`ByteStream.channel_binding`), so with a token the client needs no certificate authority, and a server may make its
certificate on the spot. Whoever prefers certificates passes `verifying_client_context()`, and may let the server ask
for the client's certificate as well.
"""

from __future__ import annotations

import datetime
import hashlib
import os
import ssl
import tempfile
from pathlib import Path
from typing import Final

from rlm_wire.errors import TransportError

SELF_MADE_LIFETIME: Final = datetime.timedelta(days=825)
"""The longest that common TLS stacks accept of a server certificate; far beyond the life of a worker."""

CLOCK_SKEW: Final = datetime.timedelta(days=1)
"""A self-made certificate is valid from this long ago: clocks of machines that just started differ."""


def unverifying_client_context() -> ssl.SSLContext:
    """Encrypts, and takes any certificate: safe only together with a token, whose check is bound to the certificate."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


def verifying_client_context(
    *,
    authority: str | os.PathLike[str] | None = None,
    certificate: str | os.PathLike[str] | None = None,
    key: str | os.PathLike[str] | None = None,
) -> ssl.SSLContext:
    """Takes only a certificate for the host's name, signed by `authority` (a PEM file; default: the system's).

    `certificate` and `key` (PEM files) are shown to servers that ask. Raises `TransportError` for unusable files.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    if authority is None:
        context.load_default_certs(ssl.Purpose.SERVER_AUTH)
    else:
        _load_authority(context, authority)
    if certificate is not None:
        _load_own(context, certificate, key)
    return context


def server_context(
    certificate: str | os.PathLike[str],
    key: str | os.PathLike[str] | None = None,
    *,
    client_authority: str | os.PathLike[str] | None = None,
) -> ssl.SSLContext:
    """For `listen`, from PEM files; `key` may be in the certificate's file.

    With `client_authority`, clients must show a certificate signed by it. Raises `TransportError` for unusable files.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.num_tickets = 0  # nothing here resumes TLS sessions, and a client that only sends would never read them
    _load_own(context, certificate, key)
    if client_authority is not None:
        _load_authority(context, client_authority)
        context.verify_mode = ssl.CERT_REQUIRED
    return context


def self_made_server_context() -> ssl.SSLContext:
    """For `listen`, with a new key and a self-signed certificate. Raises `TransportError` without `rlm-wire[tls]`."""
    # ssl loads keys from files only: this one exists for a moment and for its owner alone.
    with tempfile.NamedTemporaryFile(prefix="rlm-wire-", suffix=".pem") as file:
        file.write(self_made_certificate())
        file.flush()
        return server_context(file.name)


def self_made_certificate() -> bytes:
    """A new P-256 key and a certificate for it, signed by itself, as one PEM file. Raises as above."""
    try:
        from cryptography import x509
        from cryptography.hazmat.primitives import hashes, serialization
        from cryptography.hazmat.primitives.asymmetric import ec
    except ImportError as error:
        raise TransportError(
            "making a certificate needs the package cryptography: pip install 'rlm-wire[tls]', or pass a certificate"
        ) from error
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "rlm-wire")])
    now = datetime.datetime.now(datetime.UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - CLOCK_SKEW)
        .not_valid_after(now - CLOCK_SKEW + SELF_MADE_LIFETIME)
        .add_extension(x509.SubjectAlternativeName([x509.DNSName("localhost")]), critical=False)
        .sign(key, hashes.SHA256())
    )
    return certificate.public_bytes(serialization.Encoding.PEM) + key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )


def digest_of(certificate: bytes | None) -> bytes:
    """The channel binding of a DER certificate."""
    if not certificate:
        raise TransportError("the TLS server showed no certificate")
    return hashlib.sha256(certificate).digest()


def digest_shown_by(context: ssl.SSLContext) -> bytes:
    """The channel binding of the certificate that a server with `context` shows to a client that names no host.

    `ssl` does not tell, so this makes one handshake in memory, about a millisecond. Raises `TransportError`.
    """
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    probe = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    probe.check_hostname = False
    probe.verify_mode = ssl.CERT_NONE
    client = probe.wrap_bio(to_client, to_server)
    server = context.wrap_bio(to_server, to_client, server_side=True)
    try:
        for side in (client, server, client):
            try:
                side.do_handshake()
            except ssl.SSLWantReadError:
                continue
        return digest_of(client.getpeercert(binary_form=True))
    except (ssl.SSLError, ValueError) as error:
        raise TransportError(
            f"this ssl_context cannot serve: {error}. It needs a certificate, and TLS 1.3 if it asks for the client's"
        ) from error


def _load_authority(context: ssl.SSLContext, path: str | os.PathLike[str]) -> None:
    try:
        context.load_verify_locations(cafile=path)
    except (OSError, ssl.SSLError) as error:
        raise TransportError(f"cannot use {Path(path)} as a certificate authority: {_reason(error)}") from error


def _load_own(context: ssl.SSLContext, certificate: str | os.PathLike[str], key: str | os.PathLike[str] | None) -> None:
    def no_passphrase() -> str:
        raise TransportError(f"the key of {Path(certificate)} is encrypted; pass one that is not")

    try:
        context.load_cert_chain(certificate, key, password=no_passphrase)
    except (OSError, ssl.SSLError) as error:
        files = str(Path(certificate)) if key is None else f"{Path(certificate)} with the key {Path(key)}"
        raise TransportError(f"cannot use the certificate {files}: {_reason(error)}") from error


def _reason(error: OSError) -> str:
    if isinstance(error, ssl.SSLError):
        return "not a PEM file, or certificate and key do not belong together"
    return error.strerror or str(error)
