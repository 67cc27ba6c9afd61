"""Gymnasium environments over the simulator: observations, masks and rewards."""

import gymnasium

# Here, because Gymnasium knows an environment from the import of its package on; nothing heavy is imported before use.
gymnasium.register(
    id="longshore/Placement-v0",
    entry_point="longshore.envs.placement:PlacementEnv",
    vector_entry_point="longshore.envs.vector:PlacementVectorEnv",
)
