"""`opmeter work`."""


def work_verb() -> int:
    """Do the work of one index of a wave: what runs in a worker pod."""
    from jobs.executor.pid1 import run_as_pid1
    from jobs.executor.worker_pod import work_in_pod

    return run_as_pid1(work_in_pod)
