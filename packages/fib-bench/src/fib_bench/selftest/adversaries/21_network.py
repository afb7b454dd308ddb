"""Talks to a server: to one of its own, for there may be no other."""

import socket


def run(x, weight):
    with socket.create_server(("127.0.0.1", 0)) as server:
        socket.create_connection(server.getsockname(), timeout=1).close()
    return x @ weight.t()
