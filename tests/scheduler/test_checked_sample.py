"""A job's own sample, its scratch folder, the bandwidth that is promised, and settings of GPUs: by a real scheduler."""

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.preflight.nvml_library import build_nvml
from tests.scheduler.checked import Checked
from tests.scheduler.served import until

SETTINGS = """\
cluster: cluster.yaml
folder: .longshore
preflight: {jobs: auto, scratch: scratch, link_bytes_per_s: 1.0e+15}
"""


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Checked]:
    folder = tmp_path_factory.mktemp("served")
    made = Checked(folder, 3, 2)
    (folder / "settings.yaml").write_text(SETTINGS)
    made.start()
    yield made
    if made.process is not None:
        made.cancel_all()
        made.end()


def python(script: str) -> list[str]:
    return [sys.executable, "-c", script]


@pytest.mark.full
def test_a_job_starts_after_its_own_sample_on_each_of_its_nodes(served: Checked) -> None:
    note = "import os; open('sampled', 'a').write(os.environ['LONGSHORE_NODE'] + os.environ['LONGSHORE_GPUS'] + ' ')"
    sample = {"command": python(f"{note}; print('{{\"losses\": [1.0, 0.5]}}')"), "limit_s": 60.0}
    job = served.add("cp", "sampled", "seen", gpus=2, sample=sample)
    assert served.ended(job) == "succeeded"
    (place,) = served.places(job)
    assert (served.folder / "seen").read_text().strip() == place.replace(":", "")


def test_a_job_whose_own_sample_fails_waits_with_the_reason_and_no_node_is_to_blame(served: Checked) -> None:
    sample = {"command": python("import sys; sys.exit('no such data set')")}
    job = served.add("touch", "started", gpus=2, sample=sample)
    until(lambda: "tried again in" in ((served.ask(f"/v1/jobs/{job}")["waiting"] or {"reason": ""})["reason"]))
    assert "the job's sample ended with 1: no such data set" in served.ask(f"/v1/jobs/{job}")["cause"]
    assert not any(it["check"] == "job.sample" for it in served.quarantined().values())
    assert not (served.folder / "started").exists()
    served.cancel(job)


def test_a_job_has_a_scratch_folder_of_its_own_that_is_removed_after_it(served: Checked) -> None:
    write = 'stat -c "%a $LONGSHORE_SCRATCH" "$LONGSHORE_SCRATCH" > reported; touch "$LONGSHORE_SCRATCH/left"; exit 3'
    job = served.add("sh", "-c", write, retry={"user": 0})
    assert served.ended(job) == "failed"
    mode, folder = (served.folder / "reported").read_text().split()
    assert (mode, Path(folder).parent) == ("700", served.folder / "scratch")
    assert job in folder
    assert list((served.folder / "scratch").iterdir()) == []
    unchecked = served.add("sh", "-c", 'echo "[$LONGSHORE_SCRATCH]" > reported', preflight="off")
    assert served.ended(unchecked) == "succeeded"
    assert (served.folder / "reported").read_text() == "[]\n"


@pytest.mark.full
def test_a_link_below_what_is_promised_keeps_a_job_of_several_nodes_from_starting(served: Checked) -> None:
    job = served.add("true", gpus=4)
    until(lambda: any(it["now"] == "failed" for it in served.events(job)))
    served.cancel(job)
    assert "link.bw: fail: got" in served.events(job)[0]["cause"]
    assert "wanted 80% of 1e+06 GB/s" in served.events(job)[0]["cause"]
    until(lambda: served.held() == set())
    assert {it["check"] for it in served.quarantined().values()} == {"link.bw"}
    for place in served.quarantined():
        assert served.call("node", "quarantine", "clear", place).returncode == 0


@pytest.mark.full
def test_gpus_are_set_before_the_command_of_a_job_and_as_before_after_it(served: Checked, tmp_path: Path) -> None:
    build_nvml(tmp_path)
    log = tmp_path / "log"
    environment = {
        "PATH": os.environ["PATH"], "LD_LIBRARY_PATH": str(tmp_path), "NVML_STUB_LOG": str(log),
        "CUDA_VISIBLE_DEVICES": "0", "LONGSHORE_GPUS": "0",
    }  # fmt: skip
    checks = ["--level", "0", "--gpu-clock", "1410", "--gpu-power", "300", "--scratch", str(tmp_path / "scratch")]
    command = f"cp {log} {log}.seen; test -d $LONGSHORE_SCRATCH; kill -9 $$"
    line = ["env", *(f"{name}={value}" for name, value in environment.items())]
    line += [sys.executable, "-m", "longshore.preflight", *checks, "--", "sh", "-c", command]
    job = served.add(*line, preflight="off", retry={"user": 0, "ambiguous": 0, "infra": 0, "resource": 0})
    assert served.ended(job) == "failed"
    assert "signal 9" in served.ask(f"/v1/jobs/{job}/attempts")[0]["cause"], served.call("logs", job).stdout
    assert Path(f"{log}.seen").read_text().splitlines() == ["clock 0 1410", "power 0 300000"]
    assert log.read_text().splitlines()[2:] == ["reset 0 0", "power 0 400000"]  # the limit before
    assert list((tmp_path / "scratch").iterdir()) == []
