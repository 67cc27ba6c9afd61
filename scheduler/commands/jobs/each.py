"""What is done to several jobs, one after the other."""

from collections.abc import Callable
from typing import Any

import typer

from ....cluster.files.errors import InputError, raise_all
from ..options import print_json

Answer = dict[str, Any]


def do_to_each(jobs: list[str], change: Callable[[str], Answer], words: Callable[[Answer], str], *, json: bool) -> None:
    """Change jobs and say how each stands; one that cannot be changed does not keep the others from it.

    Args:
        jobs: Their ids.
        change: Changes one, and returns what the API says of it.
        words: What is said of one.
        json: Whether the answers of the API are printed in place of words.

    Raises:
        InputError: Naming all that could not be changed.
    """
    answers, errors = [], []
    for job in dict.fromkeys(jobs):
        try:
            answers.append(change(job))
        except InputError as error:
            errors.append(error)
        else:
            if not json:
                typer.echo(f"{job}  {words(answers[-1])}")
    if json:
        print_json(answers)
    raise_all(errors)
