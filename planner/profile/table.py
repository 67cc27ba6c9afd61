"""A user's own table of layers, where no rung of the ladder can profile the model.

Source: SPEC P1.
"""

from contextlib import closing
from pathlib import Path

from ...cluster.files.errors import InputError
from ...cluster.files.output_file import readable
from ...cluster.traces.table import Rows, read_rows
from .layers import MOST_LAYERS, LayerProfile, ModelProfile

COLUMNS = ("name", "parameters", "forward_flops", "saved_bytes", "output_bytes")
AMOUNTS = ("backward_flops", "tied_parameters", "input_elements", "frozen_parameters", "frozen_bytes", "fixed_costs")
OPTIONAL = (*AMOUNTS, "heads", "is_block", "tokens")
MOST = 1e30
NUMBER_BYTES = 2.0  # of a weight that is not trained


def read_table(path: Path) -> ModelProfile:
    """Return the profile of a table: a row for each layer, in order; docs/planner.md has the columns.

    Raises:
        InputError: If it cannot be used.
    """
    layers, tokens = list[LayerProfile](), 1.0
    with closing(read_rows(path, COLUMNS, optional=OPTIONAL)) as chunks:
        for rows in chunks:
            if len(layers) + len(rows.lines) > MOST_LAYERS:
                raise InputError(f"there are more than {MOST_LAYERS:,} layers", "put some into one row", path=path)
            layers += _layers(rows)
            if rows.has("tokens"):
                tokens = float(rows.numbers("tokens", least=1.0, most=1e12)[0])
    if not layers:
        raise InputError("the table has no layer", "add a row for each", path=path)
    return ModelProfile(
        name=readable(path.name)[-300:], rung="by a table", tokens_per_sample=tokens, layers=tuple(layers)
    )


def _layers(rows: Rows) -> list[LayerProfile]:
    columns = {name: rows.numbers(name, most=MOST).tolist() for name in COLUMNS[1:]}
    for name in AMOUNTS:
        if rows.has(name):
            columns[name] = rows.numbers(name, most=MOST).tolist()
    for name, most in (("heads", 1_000_000), ("is_block", 1)):
        if rows.has(name):
            columns[name] = rows.whole_numbers(name, most=most).tolist()
    columns.setdefault("backward_flops", [2.0 * value for value in columns["forward_flops"]])
    # Where nothing is said, as much reaches a layer as it sends on, two bytes a number.
    columns.setdefault("input_elements", [value / 2.0 for value in columns["output_bytes"]])
    frozen = columns.setdefault("frozen_parameters", [0.0] * len(rows.lines))
    columns.setdefault("frozen_bytes", [NUMBER_BYTES * value for value in frozen])
    for row, (all_of_it, part) in enumerate(zip(columns["parameters"], frozen, strict=True)):
        if part > all_of_it:
            raise rows.error(
                "frozen_parameters", row, f"are more than the {all_of_it:g} parameters", "count them there too"
            )
    names = rows.cells["name"]
    return [
        LayerProfile(name=names[row][-300:], **{name: values[row] for name, values in columns.items()})
        for row in range(len(rows.lines))
    ]
