"""Hosts by name, and the addresses to which a connection may go."""

import ipaddress

import pytest

from lean_ovms.errors import StartError
from lean_ovms.features.media_files.images.allowed_hosts import AllowedHosts, is_public, parse_address

PUBLIC = "8.8.8.8 93.184.216.34 2606:4700::1111 2a00:1450:4001::200e 64:ff9b::8.8.8.8 ::ffff:8.8.8.8"
NOT_PUBLIC = """
    127.0.0.1 127.255.255.254 0.0.0.0 10.1.2.3 172.16.0.1 192.168.1.1 169.254.169.254 100.64.0.1 100.100.100.200
    192.0.0.192 198.18.0.1 203.0.113.5 224.0.0.1 239.255.255.250 240.0.0.1 255.255.255.255 :: ::1 ::127.0.0.1
    ::ffff:127.0.0.1 ::ffff:169.254.169.254 64:ff9b::127.0.0.1 64:ff9b::a9fe:a9fe 64:ff9b:1::1 2002:7f00:1::1
    2002:808:808::1 2001:0:4136:e378:8000:63bf:3fff:fdd2 2001:db8::1 fc00::1 fd00:ec2::254 fe80::1 fec0::1 ff02::1
"""


def test_the_public_internet_and_what_is_not():
    for text in PUBLIC.split():
        assert is_public(ipaddress.ip_address(text)), text
    for text in NOT_PUBLIC.split():
        assert not is_public(ipaddress.ip_address(text)), text


def test_a_name_is_matched_whole():
    assert not AllowedHosts("")
    assert not AllowedHosts("").allows_host("example.com")
    stars = AllowedHosts("*.example.com")
    hosts = ("a.example.com", "a.b.example.com", "example.com", "evilexample.com")
    assert [stars.allows_host(host) for host in hosts] == [True, True, False, False]
    hosts = AllowedHosts("Example.com, images.example.org")
    assert hosts.allows_host("example.com")
    assert hosts.allows_host("images.example.org")
    for other in ("www.example.com", "example.com.evil.example", "notexample.com", "example.co", "8.8.8.8"):
        assert not hosts.allows_host(other)


def test_all_is_every_name_and_still_no_private_address():
    hosts = AllowedHosts("all")
    assert hosts.allows_host("anything.example")
    assert hosts.allows_host("8.8.8.8")
    assert not hosts.allows_address(ipaddress.ip_address("127.0.0.1"))


def test_a_listed_address_may_be_private():
    hosts = AllowedHosts("127.0.0.1,10.1.2.0/24,[::1]")
    assert hosts.allows_host("127.0.0.1")
    assert not hosts.allows_host("127.0.0.2")
    assert not hosts.allows_host("8.8.8.8")
    for text in ("127.0.0.1", "10.1.2.77", "::1", "::ffff:127.0.0.1", "8.8.8.8"):
        assert hosts.allows_address(ipaddress.ip_address(text))
    for text in ("127.0.0.2", "10.1.3.1", "::ffff:10.9.9.9"):
        assert not hosts.allows_address(ipaddress.ip_address(text))


@pytest.mark.parametrize("text", ["http://example.com", "a.example:80", "ex*mple.com", "10.0.0.1/8", "exa*"])
def test_an_entry_that_is_no_host_stops_the_start(text):
    with pytest.raises(StartError, match="allowed_media_domains"):
        AllowedHosts(text)


@pytest.mark.parametrize("host", ["2130706433", "0x7f000001", "0177.0.0.1", "127.1", "example.com"])
def test_numbers_that_only_some_read_as_an_address_are_names(host):
    assert parse_address(host) is None
