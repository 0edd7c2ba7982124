"""client_limits: limits on a client's connections, times and bytes."""

from dataclasses import dataclass, field
from ipaddress import IPv4Network, IPv6Network

from dpsql.wire.messages.frontend import MessageLimits

Network = IPv4Network | IPv6Network


@dataclass(frozen=True, slots=True)
class ClientLimits:
    """What a client may take.

    Attributes:
        connections: Clients logged in at a time.
        user_connections: Clients of one user among them.
        logins: Clients logging in at a time, half of them from one address; cancel requests count among them. A
            further one takes the place of the one that has been silent longest.
        login_seconds: From connecting to being logged in.
        idle_seconds: Between two messages.
        write_seconds: For reading a reply.
        failure_delay: Seconds that a first failed login waits; see `dpsql.wire.login_throttle`.
        names: Prepared statements, and portals, of a client.
        messages: Bytes of a message.
    """

    connections: int = 100
    user_connections: int = 50
    logins: int = 100
    login_seconds: float = 10.0
    idle_seconds: float = 3600.0
    write_seconds: float = 60.0
    failure_delay: float = 0.5
    names: int = 1000
    messages: MessageLimits = field(default_factory=MessageLimits)
