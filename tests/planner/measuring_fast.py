"""The measurements of a machine, with samples that are far too small to be of use."""

from longshore.planner import measuring_worker

SMALL = {
    "TENSOR_SIZES": (16_384, 32_768), "CALLS": 2, "MIN_CALLS": 1, "MIN_MEASURED_S": 0.0,
    "BUSY_S": 0.01, "SPEED_ROUNDS": 1, "BUSY_SHAPE": (64, 16, 1),
    "BLOCK_SHAPES": ((64, 16, 1), (64, 32, 1), (128, 16, 1)),
    "EMBEDDING_SHAPES": ((100, 64, 16, 1), (200, 64, 16, 1)),
    "HEAD_SHAPES": ((100, 64, 16, 1), (200, 64, 16, 1)),
}  # fmt: skip
assert set(SMALL) <= set(vars(measuring_worker))
vars(measuring_worker).update(SMALL)
measuring_worker.main()
