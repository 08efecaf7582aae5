class HfExecutor:
    pass
