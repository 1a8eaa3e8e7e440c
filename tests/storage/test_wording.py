"""Numbers and nouns in sentences."""

from storage.wording import decimal, plural, points, shortened, signed


def test_a_noun_agrees_with_its_number():
    assert [plural(n, "label") for n in (0, 1, 1000)] == ["0 labels", "1 label", "1,000 labels"]
    assert plural(2, "entry", "entries") == "2 entries"


def test_what_rounds_to_zero_has_no_sign():
    assert [decimal(v, 1) for v in (-0.04, -0.05001, 1234.0)] == ["0.0", "−0.1", "1,234.0"]
    assert [signed(v, 2) for v in (-0.004, 0.0, 0.004, 0.006)] == ["0.00", "0.00", "0.00", "+0.01"]
    assert [points(v) for v in (-0.0004, 0.0004, -0.012, 0.012)] == ["0.0", "0.0", "−1.2", "+1.2"]


def test_a_long_text_ends_with_an_ellipsis():
    assert [shortened(text, 3) for text in ("abc", "abcd", "")] == ["abc", "ab…", ""]
