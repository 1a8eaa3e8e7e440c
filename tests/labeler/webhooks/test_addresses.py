"""Which addresses are public, worked out from the registries of IANA and not from `ipaddress`."""

from __future__ import annotations

import socket

import pytest

from labeler.webhooks import addresses, sender
from labeler.webhooks.addresses import AddressRefused, is_public, require_allowed, resolve
from tests.helpers.receiver import receiving

PRIVATE = (
    "0.0.0.0", "0.1.2.3", "10.0.0.1", "100.64.0.1", "100.100.100.200", "100.127.255.254",
    "127.0.0.1", "127.8.8.8", "168.63.129.16", "169.254.169.254", "172.16.0.1", "172.31.255.255",
    "192.0.0.192", "192.0.2.1", "192.168.1.1", "198.18.0.1", "198.51.100.7", "203.0.113.9",
    "224.0.0.1", "239.255.255.250", "240.0.0.1", "255.255.255.255",
    "::", "::1", "::127.0.0.1", "::ffff:127.0.0.1", "::ffff:10.1.2.3", "::ffff:169.254.169.254",
    "::ffff:100.64.0.1", "::ffff:168.63.129.16", "64:ff9b::a9fe:a9fe", "64:ff9b::7f00:1",
    "2002:7f00:1::1", "2002:c0a8:101::1", "2001:0:7f00:1::", "fc00::1", "fd00:ec2::254",
    "fe80::1", "fe80::1%eth0", "fec0::1", "ff02::1", "2001:db8::1",
)  # fmt: skip
PUBLIC = (
    "1.1.1.1", "8.8.8.8", "100.63.255.255", "100.128.0.1", "172.15.0.1", "172.32.0.1",
    "192.167.1.1", "169.253.1.1", "2606:4700:4700::1111", "2a00:1450:4001:81b::200e",
    "::ffff:8.8.8.8", "64:ff9b::808:808",
)  # fmt: skip


@pytest.mark.parametrize("address", PRIVATE)
def test_an_address_that_only_this_machine_or_network_can_reach_is_not_public(address):
    assert not is_public(address)


@pytest.mark.parametrize("address", PUBLIC)
def test_an_address_on_the_internet_is_public(address):
    assert is_public(address)


@pytest.mark.parametrize("host", ["localhost", "a.localhost", "LOCALHOST.", "127.0.0.1", "::1"])
def test_a_private_address_is_refused_when_a_webhook_is_added(host):
    with pytest.raises(ValueError, match="--allow-private-webhooks"):
        require_allowed(host, allow_private=False)
    require_allowed(host, allow_private=True)


def test_a_name_is_looked_up_only_when_a_request_is_sent():
    require_allowed("example.org", allow_private=False)


@pytest.mark.parametrize("host", ["localhost", "127.1", "2130706433", "0x7f.0.0.1", "0"])
def test_other_spellings_of_a_private_address_are_refused_too(host):
    with pytest.raises(AddressRefused, match="private address"):
        resolve(host, 80, allow_private=False)


def names(monkeypatch: pytest.MonkeyPatch, *answers: list[str]) -> list[str]:
    """Each look-up of a name has the next of these answers; returns the names that were asked."""
    asked: list[str] = []
    real = socket.getaddrinfo

    def answer(host, port, *rest, **more):
        if not str(host).endswith(".example"):
            return real(host, port, *rest, **more)
        asked.append(host)
        found = answers[min(len(asked), len(answers)) - 1]
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (each, port)) for each in found]

    monkeypatch.setattr(socket, "getaddrinfo", answer)
    return asked


def test_the_address_that_was_checked_is_the_one_that_is_connected_to(monkeypatch):
    """DNS rebinding: the second answer is the receiver on this machine."""
    asked = names(monkeypatch, ["203.0.114.1"], ["127.0.0.1"])
    connected = []

    def connect(_, host, *__):
        connected.append(host)
        raise sender.httpcore.ConnectError("refused by the test")

    monkeypatch.setattr(sender.httpcore.SyncBackend, "connect_tcp", connect)
    made = sender.post("http://rebind.example/", b"{}", {}, allow_private=False)
    assert (asked, connected) == (["rebind.example"], ["203.0.114.1"])
    assert "refused by the test" in made.error


def test_of_several_addresses_only_public_ones_are_tried(monkeypatch):
    names(monkeypatch, ["10.0.0.1", "1.1.1.1", "127.0.0.1"])
    assert resolve("mixed.example", 80, allow_private=False) == ["1.1.1.1"]
    assert resolve("mixed.example", 80, allow_private=True) == ["10.0.0.1", "1.1.1.1", "127.0.0.1"]


def test_a_receiver_on_this_machine_gets_nothing_unless_it_is_allowed(monkeypatch):
    names(monkeypatch, ["127.0.0.1"])
    with receiving() as receiver:
        url = receiver.url.replace("127.0.0.1", "inside.example")
        refused = sender.post(url, b"{}", {}, allow_private=False)
        assert refused.code is None
        assert refused.error == addresses.REFUSED.format(host="inside.example", address="127.0.0.1")
        assert receiver.requests == []
        assert sender.post(url, b"{}", {}, allow_private=True).code == 204
        assert receiver.requests[0].headers["host"].startswith("inside.example:")
