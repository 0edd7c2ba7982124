"""The PROXY protocol, versions 1 and 2: reads the client's address from the header that a proxy sends.

Rule: headers are accepted only from proxies that the operator trusts, and are required from them.

Reference: https://www.haproxy.org/download/3.0/doc/proxy-protocol.txt
"""

import re
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address, ip_address
from typing import Final

from dpsql.errors import ProtocolViolation

_V1: Final = b"PROXY "
_V1_BYTES: Final = 107
_V1_LINE: Final = re.compile(
    rb"PROXY (?:UNKNOWN[ -~]*|(TCP[46]) ([0-9a-f.:]+) [0-9a-f.:]+ ([0-9]{1,5}) [0-9]{1,5})", re.IGNORECASE
)
_V2: Final = b"\r\n\r\n\x00\r\nQUIT\n"
_V2_HEAD: Final = 16
_LOCAL: Final = 0x20
_PROXY: Final = 0x21
_SIZES: Final = {0x11: 4, 0x21: 16}
"""Bytes of an address of TCP over IPv4 and over IPv6."""
HEADER_BYTES: Final = 2048
"""The longest header that is read, with whatever a proxy adds to the addresses."""


@dataclass(frozen=True, slots=True)
class ProxyHeader:
    """A header.

    Attributes:
        size: Its bytes.
        source: The client's address and port; None where the proxy speaks for itself, as in a health check.
    """

    size: int
    source: tuple[str, int] | None


def read_proxy_header(data: bytes) -> ProxyHeader | None:
    """Return the header that bytes begin with, or None if it is not whole yet.

    Raises:
        ProtocolViolation: They begin with none.
    """
    if data[: len(_V2)] == _V2[: len(data)]:
        return _read_v2(data)
    if data[: len(_V1)] == _V1[: len(data)]:
        return _read_v1(data)
    raise ProtocolViolation("expected a PROXY protocol header from a trusted proxy")


def _read_v1(data: bytes) -> ProxyHeader | None:
    line, end, _ = data[:_V1_BYTES].partition(b"\r\n")
    if not end:
        if len(data) >= _V1_BYTES:
            raise ProtocolViolation("the line of a PROXY header is too long")
        return None
    found = _V1_LINE.fullmatch(line)
    if found is None:
        raise ProtocolViolation("the line of a PROXY header is malformed")
    size = len(line) + len(end)
    if found[1] is None:
        return ProxyHeader(size, None)
    try:
        address = (IPv4Address if found[1] == b"TCP4" else IPv6Address)(found[2].decode())
    except ValueError:
        raise ProtocolViolation("the address of a PROXY header is malformed") from None
    return ProxyHeader(size, (str(address), int(found[3])))


def _read_v2(data: bytes) -> ProxyHeader | None:
    if len(data) < _V2_HEAD:
        return None
    command, family = data[12], data[13]
    size = _V2_HEAD + int.from_bytes(data[14:_V2_HEAD], "big")
    if command not in (_LOCAL, _PROXY) or size > HEADER_BYTES:
        raise ProtocolViolation("the PROXY header is of another version, or too long")
    if len(data) < size:
        return None
    width = _SIZES.get(family)
    if command == _LOCAL or width is None:
        return ProxyHeader(size, None)
    if size < _V2_HEAD + 2 * width + 4:
        raise ProtocolViolation("the PROXY header is too short for its addresses")
    address = ip_address(data[_V2_HEAD : _V2_HEAD + width])
    port = data[_V2_HEAD + 2 * width : _V2_HEAD + 2 * width + 2]
    return ProxyHeader(size, (str(address), int.from_bytes(port, "big")))
