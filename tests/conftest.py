"""Settings of all tests."""

from hypothesis import settings

# A busy machine takes longer, and no test is about how long: what hangs is ended by pytest-timeout.
settings.register_profile("headrace", deadline=None)
settings.load_profile("headrace")
