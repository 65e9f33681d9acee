"""`python -m benchgate` is the command itself."""

from benchgate.cli.app import main

if __name__ == "__main__":
    main()
