"""Pages of one file, without a script, that make no request of any kind."""

from __future__ import annotations

from markupsafe import Markup

from server_app.report.html import PAGE, render
from server_app.report.style import STYLE


def still_page(title: str, body: str, style: str = "", *, pictures: bool = False) -> str:
    """Return a page around its rendered body.

    Parameters
    ----------
    title, body : str
        The title, and what `render` made.
    style : str, optional
        CSS in addition to the report's.
    pictures : bool, optional
        Whether the body holds pictures, as data.
    """
    policy = "default-src 'none'; style-src 'unsafe-inline'" + "; img-src data:" * pictures
    return render(
        PAGE, policy=policy, title=title, style=Markup(STYLE + style), script="", body=body
    )
