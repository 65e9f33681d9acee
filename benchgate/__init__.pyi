from benchgate.api import Result, RunStore, compare, judge, load_suite, open_store, run

__version__: str
__all__ = ["Result", "RunStore", "compare", "judge", "load_suite", "open_store", "run"]
