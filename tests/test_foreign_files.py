"""A file of another kind, given to any option that reads one, is refused in a line that names it; nothing is left."""

from pathlib import Path

import pytest

from longshore.cluster.files.processes import free_port
from tests.checkout import ROOT
from tests.command_line import Command, words_of

pytestmark = pytest.mark.long

FOREIGN = {
    "binary": b"\xff\xfe\x00\x81\n", "UTF-16": "nodes: []\n".encode("utf-16"), "zeros": b"a\x00b,c\n1,2\n",
    "an archive": b"PK\x03\x04" + b"\0" * 50, "deep lists": b"[" * 100_000, "deep maps": b"a: " + b"{a: " * 3000,
    "a large number": b'{"nodes": ' + b"9" * 5000 + b"}", "no numbers": b'{"nodes": NaN, "gpus": Infinity}\n',
    "half a character": b'{"a": "\\ud800"}', "keys that are numbers": b"1: 2\n3: 4\n", "itself": b"a: &a [*a]\n",
    "a program": b"!!python/object/apply:os.system ['true']\n", "no such date": b"nodes: 2020-13-45\n",
    "more cells than columns": b"a,b\n1,2,3,4\n", "lines of JSON": b'{"past": {}}\n{"past": 1}\n', "null": b"null\n",
}  # fmt: skip
LARGE, MODELS = ROOT / "examples/philly64.yaml", ROOT / "examples/plan/models.yaml"
OPTIONS = (
    "simulate --policy pack --cluster {file}",
    "simulate --policy pack --cluster {large} --trace {file}",
    "simulate --policy pack --cluster {large} --jobs 3 --faults {file}",
    "simulate --cluster {large} --jobs 3 --policy {zip}",
    "evaluate --preset patent4 --policy {zip}",
    "evaluate --pictures {runs} --cluster {large} --trace {file}",
    "train --steps 10 --logdir {runs} --trace {file}",
    "train --steps 10 --logdir {runs} --trace {trace} --cluster {file}",
    "train --steps 10 --logdir {runs} --trace {trace} --cluster {large} --faults {file}",
    "train --steps 10 --logdir {runs} --preset hetero64 --algo group --init {file}",
    "train --steps 10 --logdir {runs} --history {file}",
    "train --steps 10 --logdir {runs} --preset patent4 --parameters {file}",
    "tune --steps 10 --logdir {runs} --trials 1 --trace {file}",
    "policy replay --policy pack {file}",
    "serve --as-root --port {port} --folder {runs} --config {file}",
    "serve --as-root --port {port} --folder {runs} --cluster {file}",
    "config check {file}",
    "compile --config {file}",
    "preflight --folder {runs} --wiring {file}",
    "preflight --folder {runs} --learn-wiring {file}",
    "preflight --folder {runs} --port-facts {file}",
    "store decisions --out {runs} --store sqlite:///{file}",
    "preflight --folder {runs} --cluster {file}",
    "extender --cluster {file}",
    "trace list --catalogue {file}",
    "trace inspect {file}",
    "trace convert {file} {runs}",
    "trace plan {trace} {runs} --models {models} --cluster {file}",
    "trace plan {trace} {runs} --models {file} --cluster {large}",
    "plan calibrate {file}",
    "plan run {file} module:function",
    "policy import {file}",
)
TRACE = "job_id,submit_s,run_s,gpus\na,0,60,1\n"


@pytest.mark.few(7)
@pytest.mark.parametrize("option", OPTIONS)
def test_it_is_refused(option: str, longshore: Command, tmp_path: Path) -> None:
    trace = tmp_path / "trace.csv"
    trace.write_text(TRACE)
    for kind, content in FOREIGN.items():
        file = tmp_path / ("file.zip" if "{zip}" in option else "file")
        file.write_bytes(content)
        line = words_of(
            option,
            file=file,
            zip=file,
            runs=tmp_path / "runs",
            trace=trace,
            large=LARGE,
            models=MODELS,
            port=free_port(),
        )
        done = longshore(*line)
        assert (done.status, done.out) == (2, ""), (kind, done)
        assert str(file) in done.err.splitlines()[-1], (kind, done)
        assert set(tmp_path.iterdir()) == {file, trace}, kind


OURS = [
    ("train --preset patent4 --steps 10 --logdir {runs}", "config.json"),
    ("train --preset patent4 --steps 10 --logdir {runs}", "snapshot.npz"),
    ("tune --preset patent4 --steps 10 --trials 1 --logdir {runs}", "config.json"),
]


@pytest.mark.few(1)
@pytest.mark.parametrize(("command", "name"), OURS)
def test_so_is_a_file_of_ours_that_is_damaged(command: str, name: str, longshore: Command, tmp_path: Path) -> None:
    line = words_of(command, runs=tmp_path)
    assert longshore(*line).status == 0
    (kept,) = tmp_path.glob(f"*/{name}")
    for content in FOREIGN.values():
        kept.write_bytes(content)
        done = longshore(*line)
        assert (done.status, kept.read_bytes()) == (2, content), (content[:40], done)
        assert str(kept.parent) in done.err.splitlines()[-1]
