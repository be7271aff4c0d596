"""A folder shared by processes: races, and writers that are killed."""

import hashlib
import random
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

import collector
from collector.store.file import FileStore

pytestmark = pytest.mark.server

RACE = """
import sys
from collector.codec.errors import AlreadyExists
from collector.store.file import FileStore

def refuse(source, target):
    raise OSError(95, "links are refused here")

root, name, links = sys.argv[1:]
store = FileStore(root) if links == "yes" else FileStore(root, link=refuse)
print("ready", flush=True)
sys.stdin.readline()
for number in range(20):
    try:
        store.create(f"race/{number}", f"{name} ".encode() * 5000)
    except AlreadyExists:
        continue
    print(number)
"""

WRITE_FOR_EVER = """
import hashlib, itertools, os, sys
from collector.codec.errors import AlreadyExists
from collector.store.file import FileStore

store = FileStore(sys.argv[1])
print("ready", flush=True)
for number in itertools.count():
    body = os.urandom(200_000)
    data = hashlib.sha256(body).digest() + body
    store.put(f"put/{number % 3}", data)
    try:
        store.create(f"create/{os.getpid()}/{number}", data)
    except AlreadyExists:
        raise SystemExit(1)
    store.delete(f"create/{os.getpid()}/{number - 5}")
"""


def python(script, *arguments):
    return subprocess.Popen(
        [sys.executable, "-c", script, *map(str, arguments)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=Path(collector.__file__).parents[1],
    )


def end(process):
    process.kill()
    process.wait()
    process.stdin.close()
    process.stdout.close()


@pytest.mark.parametrize("links", ["yes", "no"])
def test_one_of_six_processes_creates_each_key(tmp_path, links):
    racers = [python(RACE, tmp_path, f"racer{number}", links) for number in range(6)]
    try:
        for racer in racers:
            assert racer.stdout.readline() == "ready\n"
        for racer in racers:
            racer.stdin.write("go\n")
            racer.stdin.flush()
        won = {
            int(line): f"racer{number} "
            for number, racer in enumerate(racers)
            for line in racer.stdout
        }
        wins = sum(racer.wait(timeout=30) == 0 for racer in racers)
    finally:
        for racer in racers:
            end(racer)
    assert wins == 6
    assert sorted(won) == list(range(20))
    store = FileStore(tmp_path)
    for number, text in won.items():
        assert store.get(f"race/{number}") == text.encode() * 5000
    assert len(list(store.list(""))) == 20


def is_whole(data):
    return hashlib.sha256(data[32:]).digest() == data[:32] and len(data) == 200_032


def test_killed_writer_leaves_only_complete_objects(tmp_path):
    chance = random.Random(4)
    store = FileStore(tmp_path)
    for _ in range(12):
        writer = python(WRITE_FOR_EVER, tmp_path)
        try:
            assert writer.stdout.readline() == "ready\n"
            time.sleep(chance.uniform(0.0, 0.15))
        finally:
            end(writer)
        listed = list(store.list(""))
        assert all(info.size_bytes == 200_032 for info in listed)
        assert all(is_whole(store.get(info.key)) for info in listed)
    assert any(info.key.startswith("put/") for info in store.list(""))
    assert any(info.key.startswith("create/") for info in store.list(""))


def test_reader_never_sees_a_partly_replaced_object(tmp_path):
    store = FileStore(tmp_path)
    store.put("k", b"0" * 100_000)
    done = threading.Event()

    def write():
        for number in range(100):
            store.put("k", b"%d" % (number % 10) * 100_000)
        done.set()

    writer = threading.Thread(target=write)
    writer.start()
    while not done.is_set():
        data = store.get("k")
        assert len(data) == 100_000
        assert len(set(data)) == 1
    writer.join()


def test_folders_pruned_and_made_concurrently_lose_nothing(tmp_path):
    """One thread prunes folders while others write into them."""
    store = FileStore(tmp_path)

    def turn(thread):
        for number in range(60):
            store.put(f"a/b/{thread}/{number}", b"1")
            store.delete(f"a/b/{thread}/{number}")
        store.put(f"a/b/{thread}/kept", b"1")

    threads = [threading.Thread(target=turn, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [info.key for info in store.list("")] == [f"a/b/{n}/kept" for n in range(4)]
