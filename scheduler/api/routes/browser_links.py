"""POST /v1/browser-links: a link by which one browser gets to the dashboard, once and without a token in it."""

from typing import Annotated

from fastapi import APIRouter, Depends, Request
from pydantic import BaseModel, ConfigDict

from ...access.browsers import Browsers, link_path
from ..http.auth import Operating, Serving

router = APIRouter()


class BrowserLink(BaseModel):
    """Where a browser is let in."""

    model_config = ConfigDict(frozen=True)

    path: str  # on this server


async def browsers_of(request: Request) -> Browsers:
    """Return the browsers that an application has let in."""
    browsers: Browsers = request.app.state.browsers
    return browsers


Letting = Annotated[Browsers, Depends(browsers_of)]


@router.post("/v1/browser-links", status_code=201)
async def link(request: Request, service: Serving, _: Operating, browsers: Letting) -> BrowserLink:
    """Make a link that lets one browser in, once and within an hour, as whoever asks."""
    secret = request.headers.get("authorization", "").partition(" ")[2]
    if not secret:
        return BrowserLink(path="/")  # an open scheduler asks nobody
    return BrowserLink(path=link_path(browsers.code_for(secret, service.now_s())))
