"""`longshore trace plan`."""

from pathlib import Path
from typing import Annotated

import typer

from .options import MaxGpusOption, SeedOption
from .progress import progress

PLAN_EXAMPLE = (
    "Example: longshore trace plan jobs.csv planned.csv --models examples/plan/models.yaml --cluster mine.yaml"
)


def plan_trace(
    file: Annotated[Path, typer.Argument(help="A trace of any format.")],
    output: Annotated[Path, typer.Argument(help="The csv file to write.")],
    models: Annotated[Path, typer.Option(help="Decoders (YAML; examples/plan/models.yaml).")],
    cluster: Annotated[Path, typer.Option(help="Cluster file (YAML; see examples/) that plans are for.")],
    hardware: Annotated[
        Path | None, typer.Option(help="Profile of `longshore planner calibrate`; an A100's if left out.")
    ] = None,
    max_gpus: MaxGpusOption = None,
    seed: SeedOption = 0,
) -> None:
    """Give each job of a trace a model and the plans by which it may be trained.

    Traces do not tell of models: one is drawn for each job among those that fit its GPUs and its time. Jobs that ask
    more GPUs than 3/4 of the cluster get so many, or as many as --max-gpus says.
    """
    with progress("reading the input") as tell:
        from ..cluster.files.errors import InputError
        from ..cluster.files.output_file import check_csv, check_outputs
        from ..cluster.presets.cluster_file import read_cluster
        from ..cluster.traces.detect import read_trace
        from ..cluster.traces.statistics import write_trace
        from ..cluster.workloads.windows import with_gpus_cut
        from ..planner.calibration import read_gpus
        from ..planner.jobs import Tables, attach, read_models
        from ..planner.model import DEFAULT

        check_csv("OUTPUT", output)
        read = {"FILE": file, "--models": models, "--cluster": cluster, "--hardware": hardware}
        check_outputs({"OUTPUT": output}, read)
        setup, decoders = read_cluster(cluster), read_models(models)
        if not setup.rules.ring:
            problem = f"{cluster} has the simple model of run times, which knows no links"
            raise InputError(problem, "write run_time: {model: ring} there", field="--cluster")
        profile = DEFAULT if hardware is None else read_gpus(hardware)
        most = max_gpus or max(1, setup.cluster.gpu_node.size * 3 // 4)
        jobs = with_gpus_cut(read_trace(file), most)
        tell(f"planning {jobs.jobs} jobs")
        found = attach(jobs, decoders, Tables(setup, profile, most), seed)
        write_trace(found.workload, output)
    typer.echo(f"{output}: {jobs.jobs} jobs, {jobs.jobs - found.models['']} with plans")
    for decoder in decoders:
        if found.models[decoder.name]:
            typer.echo(f"  {found.models[decoder.name]} train {decoder.name}")
    if found.models[""]:
        why = "too short for any model, no batch is split over their GPUs, or no type has so many"
        typer.echo(f"  {found.models['']} have no plan: {why}")
