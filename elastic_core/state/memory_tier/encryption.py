"""TLS 1.3 around a connection that leaves the machine, by a certificate that lives as long as its process.

Nobody issues these certificates and nobody checks their names: both sides prove the secret that they share, and the
proof is of the certificate as well (`binding`, the "tls-server-end-point" of RFC 5929, as SCRAM-PLUS has it). Who sits
between them shows another certificate and knows no secret, so that neither side takes its proof.
"""

from __future__ import annotations

import datetime
import hashlib
import os
import socket
import ssl
from dataclasses import dataclass
from functools import cache

DAYS = 3650  # a process that serves for longer is none


@dataclass(frozen=True, slots=True)
class Secured:
    """A connection inside TLS, and what binds a proof to it."""

    connection: ssl.SSLSocket
    binding: bytes


def server_side(connection: socket.socket) -> Secured:
    """Takes the connection over. An `OSError` for who speaks no TLS 1.3."""
    context, binding = _own_certificate()
    return Secured(context.wrap_socket(connection, server_side=True), binding)


def client_side(connection: socket.socket) -> Secured:
    """Takes the connection over. Whose certificate it is shows the proof that is bound to it: see above."""
    secured = _client_context().wrap_socket(connection)
    certificate = secured.getpeercert(binary_form=True)
    if certificate is None:
        secured.close()
        raise ssl.SSLError("it showed no certificate")
    return Secured(secured, _binding_of(certificate))


def _binding_of(certificate: bytes) -> bytes:
    return hashlib.sha256(certificate).digest()


@cache
def _client_context() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE  # the proof that follows is bound to the certificate
    return context


@cache
def _own_certificate() -> tuple[ssl.SSLContext, bytes]:
    """This process's: the context that it serves with, and its binding. Its key lies in no file that has a name."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    name, now = x509.Name([]), datetime.datetime.now(datetime.UTC)
    certificate = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=DAYS))
        .sign(key, hashes.SHA256())
    )
    encoded = certificate.public_bytes(serialization.Encoding.DER)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    _load(
        context,
        certificate.public_bytes(serialization.Encoding.PEM),
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()),
    )
    return context, _binding_of(encoded)


def _load(context: ssl.SSLContext, certificate: bytes, key: bytes) -> None:
    """`ssl` reads files only."""
    file = os.memfd_create("elastic-certificate", os.MFD_CLOEXEC)
    try:
        os.write(file, certificate + key)
        context.load_cert_chain(f"/proc/self/fd/{file}")
    finally:
        os.close(file)
