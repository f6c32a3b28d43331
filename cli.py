"""`python cli.py` is the command `sorl`, for a checkout that is not installed."""

from sorl.cli.main import main

if __name__ == "__main__":
    main()
