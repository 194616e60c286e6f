"""Web addresses: what every reader reads alike is spelled one way, everything else is refused."""

import ipaddress
from urllib.parse import urlsplit

import httpx
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from agentops.errors import PolicyError
from agentops.parsers import public, url


@pytest.mark.parametrize(
    ("given", "canonical"),
    [
        ("https://example.com", "https://example.com/"),
        ("HTTPS://Example.COM:443/A/b?Q=1#part", "https://example.com/A/b?Q=1"),
        ("http://example.com.:80/", "http://example.com/"),
        ("http://example.com:8080", "http://example.com:8080/"),
        ("http://example.com?", "http://example.com/"),
        ("http://example.com/a/./b/../c/", "http://example.com/a/c/"),
        ("http://example.com/a/%2e%2E/b/%2e", "http://example.com/b/"),
        ("http://example.com/../../x", "http://example.com/x"),
        ("http://example.com/%7euser/%C3%a9", "http://example.com/~user/%C3%A9"),
        ("http://example.com/a//b", "http://example.com/a//b"),
        ("http://example.com/.well-known/x", "http://example.com/.well-known/x"),
        ("http://example.com/x?q=%0A&f[a]=b", "http://example.com/x?q=%0A&f[a]=b"),
        ("http://billing:8080/", "http://billing:8080/"),
        ("http://192.0.2.1/", "http://192.0.2.1/"),
        ("http://[2001:DB8:0:0::1]:8443/", "http://[2001:db8::1]:8443/"),
        ("http://[::ffff:127.0.0.1]/", "http://127.0.0.1/"),
        ("http://[::ffff:7f00:1]/", "http://127.0.0.1/"),
    ],
)
def test_one_spelling(given: str, canonical: str) -> None:
    assert url(given).text == canonical


ODD_ADDRESSES = [  # of 127.0.0.1, 169.254.169.254 and [::1], and hosts that some readers take for one of them
    "2130706433",
    "0x7f000001",
    "0x7F000001",
    "017700000001",
    "0177.0.0.1",
    "0x7f.0.0.1",
    "0x7f.1",
    "127.1",
    "127.0.1",
    "127.0.0.1.",
    "127.0.0.01",
    "00127.0.0.1",
    "0",
    "0x",
    "0.0.0.0x0",
    "127.0.0.0x1",
    "127.0.0.1.0x0",
    "169.254.43518",
    "2852039166",
    "0xa9fea9fe",
    "0251.0376.0251.0376",
    "169.254.169.0xfe",
    "1.2.3.4.5",
    "256.1.1.1",
    "127.0.0.1%00",
    "127.0.0.1%2f",
    "%31%32%37.0.0.1",
    "127。0。0。1",
    "１２７.0.0.1",
    "⑯⑨.254.169.254",
    "127.0.0.1\u200b",
    "[::1%25lo]",
    "[::1%lo]",
    "[0:0:0:0:0:ffff:127.0.1]",
    "[127.0.0.1]",
    "[::ffff:0177.0.0.1]",
    "[::1",
    "::1",
    "[::1].example.com",
    "[v1.a:b]",
    "[]",
]


@pytest.mark.parametrize("host", ODD_ADDRESSES)
def test_odd_spellings_of_an_address_are_refused(host: str) -> None:
    with pytest.raises(PolicyError, match="not one plain web address"):
        url(f"http://{host}/")
    with pytest.raises(PolicyError, match="not one plain web address"):
        url(f"http://{host}:80/latest/meta-data/")


@pytest.mark.parametrize(
    "text",
    [
        "",
        "example.com",
        "//example.com/",
        "/path",
        "ftp://example.com/",
        "file:///etc/passwd",
        "javascript:alert(1)",
        "data:text/html,x",
        "gopher://127.0.0.1:6379/_x",
        "http:example.com",
        "http:/example.com",
        "http:///example.com",
        "http://",
        "http://user@example.com/",
        "http://user:pass@example.com/",
        "http://corp.example@evil.test/",
        "http://evil.test\\@corp.example/",
        "http://corp.example\\.evil.test/",
        "http:\\\\corp.example/",
        "http://corp.example#@evil.test:80@x/".replace("#", "\t#"),
        "http://exa mple.com/",
        " http://example.com/",
        "http://example.com/ ",
        "http://example.com/\r\nHost: evil.test",
        "http://example.com/\n",
        "http://example.com\r\n/",
        "http://exa\tmple.com/",
        "http://example.com/\x00",
        "http://example.com/#\r\n",
        "http://ex%61mple.com/",
        "http://example.com%2eevil.test/",
        "http://ex\u0430mple.com/",
        "http://xn--exmple-4nf.com/",
        "http://a.xn--p1ai/",
        "http://exa_mple.com/",
        "http://-example.com/",
        "http://example..com/",
        "http://.example.com/",
        "http://example.com../",
        "http://example.com:/",
        "http://example.com:0/",
        "http://example.com:080/",
        "http://example.com:65536/",
        "http://example.com:99999999999/",
        "http://example.com:80:80/",
        "http://example.com:+80/",
        "http://example.com:８０/",
        "http://example.com/%",
        "http://example.com/%zz",
        "http://example.com/%2",
        "http://example.com/a%2fb",
        "http://example.com/..%2fadmin",
        "http://example.com/..%5cadmin",
        "http://example.com/a%5Cb",
        "http://example.com/a%00",
        "http://example.com/a%0d%0aSet-Cookie:x",
        "http://example.com/%252e%252e/admin",
        "http://example.com/public/..;/admin",
        "http://example.com/public/.;x/admin",
        "http://example.com/public//../admin",
        "http://example.com/caf\u00e9",
        "http://example.com/a\\b",
        "http://example.com/a|b",
        "http://example.com/<x>",
        'http://example.com/"x"',
        "http://example.com/{x}",
        "http://example.com/x?q=a b",
        "http://example.com/x?q=%",
        "http://example.com/x?q=\u202e",
        "http://" + "a." * 130 + "com/",
        "http://" + "a" * 64 + ".com/",
        "http://example.com/" + "a" * 2048,
    ],
)
def test_what_readers_read_differently_is_refused_and_not_repeated(text: str) -> None:
    with pytest.raises(PolicyError, match="not one plain web address") as caught:
        url(text)
    assert len(str(caught.value)) < 200
    assert "evil" not in str(caught.value)


PIECES = st.sampled_from(
    [
        "http://",
        "https://",
        "HTTP://",
        "a",
        "example.com",
        "EXAMPLE.com",
        "127.0.0.1",
        "0x7f",
        "[::1]",
        "[::ffff:1.2.3.4]",
        "@",
        ":",
        "80",
        "443",
        "8080",
        "/",
        "//",
        ".",
        "..",
        "/../",
        "%2e",
        "%2F",
        "%41",
        "%25",
        "?",
        "#",
        "&",
        "=",
        ";",
        "\\",
        " ",
        "xn--",
        "\u0430",
        "\t",
        "_",
        "-",
        "1",
        "~",
    ]
)


@settings(max_examples=600)
@given(st.lists(PIECES, max_size=9).map("".join) | st.text(max_size=40) | st.text(max_size=20).map("http://".__add__))
@example("http://a/%2e%2e%2e/")
@example("http://a/b/.%2e/%2e./c")
@example("http://[2001:db8::1]:443/")
def test_a_canonical_address_is_a_fixed_point_that_others_read_alike(text: str) -> None:
    try:
        found = url(text)
    except PolicyError:
        return
    assert url(found.text) == found
    theirs, httpxs = urlsplit(found.text), httpx.URL(found.text)
    standard = {"http": 80, "https": 443}[found.scheme]
    assert (theirs.scheme, theirs.hostname, theirs.port or standard) == (found.scheme, found.host, found.port)
    assert (httpxs.scheme, httpxs.host, httpxs.port or standard) == (found.scheme, found.host, found.port)
    assert theirs.path == found.path == httpxs.raw_path.decode().partition("?")[0]
    assert theirs.username is theirs.password is None
    assert not httpxs.userinfo
    assert "/../" not in found.path + "/"
    if found.literal:
        assert str(ipaddress.ip_address(found.host)) == found.host
    else:
        with pytest.raises(ValueError):
            ipaddress.ip_address(found.host)
    assert found.endpoint.rpartition(":")[0].strip("[]") == found.host


NOT_PUBLIC = [
    "0.0.0.0",
    "10.0.0.1",
    "100.64.0.1",
    "100.100.100.200",
    "127.0.0.1",
    "127.255.255.254",
    "168.63.129.16",
    "169.254.169.254",
    "172.16.0.1",
    "172.31.255.255",
    "192.0.0.192",
    "192.0.2.1",
    "192.88.99.1",
    "192.168.1.1",
    "198.18.0.1",
    "198.51.100.1",
    "203.0.113.1",
    "224.0.0.1",
    "239.255.255.255",
    "240.0.0.1",
    "255.255.255.255",
    "::",
    "::1",
    "::127.0.0.1",
    "::ffff:127.0.0.1",
    "::ffff:169.254.169.254",
    "::ffff:10.0.0.1",
    "64:ff9b::7f00:1",
    "64:ff9b::a9fe:a9fe",
    "64:ff9b:1::808:808",
    "100::1",
    "2001::1",
    "2001:0:808:808::1",
    "2001:db8::1",
    "2002:7f00:1::1",
    "2002:a00:1::",
    "2002:a9fe:a9fe::1",
    "3fff::1",
    "5f00::1",
    "fc00::1",
    "fd00:ec2::254",
    "fe80::1",
    "fe80::1%eth0",
    "fec0::1",
    "ff02::1",
    "",
    "localhost",
    "8.8.8.8/32",
    "8.8.8",
    "0x08080808",
]


@pytest.mark.parametrize("address", NOT_PUBLIC)
def test_what_is_not_on_the_public_internet(address: str) -> None:
    assert not public(address)


@pytest.mark.parametrize(
    "address",
    [
        "8.8.8.8",
        "172.32.0.1",
        "100.128.0.1",
        "2606:4700::1111",
        "::ffff:8.8.8.8",
        "64:ff9b::808:808",
        "2002:808:808::1",
    ],
)
def test_what_is(address: str) -> None:
    assert public(address)


@given(st.ip_addresses())
def test_public_is_never_more_than_the_standard_library_says(address: ipaddress.IPv4Address) -> None:
    if public(str(address)):
        assert address.is_global or (address.version == 6 and (address.sixtofour or address in _NAT64))
        assert not address.is_multicast


_NAT64 = ipaddress.ip_network("64:ff9b::/96")
