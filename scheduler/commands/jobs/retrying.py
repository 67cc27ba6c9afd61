"""`longshore retry`."""

from ..options import DEFAULT_URL, CaOption, JobsArgument, JsonOption, UrlOption, client_of
from .each import do_to_each


def retry(job: JobsArgument, json: JsonOption = False, url: UrlOption = DEFAULT_URL, ca: CaOption = None) -> None:
    """Try jobs again that failed or are held, with all their tries.

    They keep their ids, their history and their checkpoints.
    """
    do_to_each(job, client_of(url, ca).retry, lambda found: f"{found['state']}, to be run", json=json)
