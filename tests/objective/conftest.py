from hypothesis import settings

settings.register_profile("mutation", max_examples=8, deadline=None, derandomize=True, database=None)
