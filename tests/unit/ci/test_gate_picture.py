"""The picture of the short page on the gate is what the gate says of made-up samples now."""

from pathlib import Path

from ci.gate_picture import draw

PICTURE = Path(__file__).parents[3] / "docs" / "gate.svg"


def test_the_picture_is_drawn_from_the_gate_as_it_is() -> None:
    drawn = draw()
    assert "here: regressed" in drawn
    assert PICTURE.read_text(encoding="utf-8") == drawn, "draw it anew: PYTHONPATH=. python ci/gate_picture.py " + str(
        PICTURE
    )
