from hypothesis import settings

# A first call compiles kernels, and the default deadline then reports a false failure.
settings.register_profile("longshore", deadline=None)
settings.load_profile("longshore")
