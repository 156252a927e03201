"""Markup that is safe to put into a page: every text and attribute is escaped here, so that no name can be a tag."""

from __future__ import annotations

from html import escape


class Svg(str):
    """Finished markup, which a template with autoescape leaves as it is."""

    def __html__(self) -> str:
        return str(self)


def element(tag: str, *children: str, **attributes: object) -> Svg:
    """``class_`` is the attribute class, ``text_anchor`` is text-anchor, None is left out. Children that are no Svg are
    text.
    """
    words = [
        f' {name.rstrip("_").replace("_", "-")}="{escape(_text(value))}"'
        for name, value in attributes.items() if value is not None
    ]  # fmt: skip
    inner = "".join(child if isinstance(child, Svg) else escape(child) for child in children)
    return Svg(f"<{tag}{''.join(words)}>{inner}</{tag}>")


def picture(label: str, *children: str, **attributes: object) -> Svg:
    """An svg element that says what it shows to who cannot see it."""
    return element("svg", *children, role="img", aria_label=label, **attributes)


def percent_of(share: float) -> str:
    """A share of 1 as a coordinate: the drawing takes any width while its texts keep their size."""
    return f"{_text(100 * share)}%"


def _text(value: object) -> str:
    """Numbers with no more digits than a screen can show."""
    return f"{value:.2f}".rstrip("0").rstrip(".") if isinstance(value, float) else str(value)
