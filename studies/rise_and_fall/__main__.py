"""`python -m studies.rise_and_fall`."""

from studies.rise_and_fall import main

main()
