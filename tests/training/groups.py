"""Learning from small groups of runs."""

from pathlib import Path

from longshore.agents.learned.checkpoint import schema_of
from longshore.cluster.model.problem import Problem
from longshore.training.config import TrainingConfig
from longshore.training.group import GroupLearner
from longshore.training.problems import GroupParameters
from longshore.training.run_folder import RunFolder
from longshore.training.validation import Validation

TINY = GroupParameters(groups=4, runs=4, group_minibatch=256)
SCHEMA = schema_of(
    algorithm="group", network="candidates", action="candidate", observation="full", waiting=False, node_gpus=(8,) * 8
)


def config(steps: int, **changes: object) -> TrainingConfig:
    own = TrainingConfig(
        preset="hetero64", algorithm="group", steps=steps, seed=0, network="candidates", action="candidate",
        reward="dt",
        group=TINY, threads=1,
    )  # fmt: skip
    return own.model_copy(update=changes)


def learner_of(folder: Path, problem: Problem, own: TrainingConfig) -> GroupLearner:
    return GroupLearner([problem], RunFolder(folder, SCHEMA, Validation(problem), own, lambda progress: None))
