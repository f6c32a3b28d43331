from hypothesis import settings

# no deadline: the time of an example says more about the machine's load than about the code
settings.register_profile("quick", max_examples=40, deadline=None, print_blob=True)
settings.register_profile("thorough", max_examples=500, deadline=None, print_blob=True)
settings.register_profile("mutation", max_examples=8, deadline=None, derandomize=True, database=None)
settings.load_profile("quick")
