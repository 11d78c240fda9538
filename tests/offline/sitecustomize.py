"""Python runs this first in every process of the tests: a name or an address elsewhere is not
asked, but an error.

10.77.0 is a network between processes of one machine, see test_distributed.
"""

import socket
import sys

NEAR = ("127.", "10.77.0.")
HERE = ("::1", "0.0.0.0", "localhost", socket.gethostname())
TO_ADDRESS = {"socket.connect", "socket.sendto", "socket.sendmsg"}
OF_NAME = {"socket.getaddrinfo", "socket.gethostbyname", "socket.gethostbyaddr"}


class NetworkAskedError(BaseException):  # which no handler takes for a network that is down
    """A test, or a process that it started, wants to leave the machine."""


def refuse(event: str, args: tuple) -> None:
    if event in TO_ADDRESS and isinstance(args[1], tuple):
        host = args[1][0]
    elif event in OF_NAME:
        host = args[0]
    else:
        return
    host = host.decode() if isinstance(host, bytes) else host
    if host and host not in HERE and not host.startswith(NEAR):
        raise NetworkAskedError(f"{event} {host}")


sys.addaudithook(refuse)
