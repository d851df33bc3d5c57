"""The checks of hack/gpucheck about saving GPU memory of kernels, and about devices that come later.

They measure what NVIDIA's driver does; most claim nothing. Each check runs in a process of its own, with a time limit,
and each of its steps may fail without the others. A step's result is a line of JSON on stdout, also when a later step
hangs. The last line is the result of the check.
"""
import collections
import errno
import json
import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time

from gpuworker import CALLS, NOBODY, Silent, Worker, memory, status

YAMA = "/proc/sys/kernel/yama/ptrace_scope"
STATES = {0: "running", 1: "locked", 2: "checkpointed", 3: "failed"}
# UVM_INITIALIZE and UVM_REGISTER_GPU_VASPACE.
INITIALIZE, VASPACE = "nvidia-uvm 0x30000001", "nvidia-uvm 25"


class Steps:
    """The results of a check's steps."""

    def __init__(self):
        self.raw = {}

    def __call__(self, name, function, *args):
        """Runs a step. An error is its result."""
        try:
            value = function(*args)
        except Exception as e:
            value = f"{type(e).__name__}: {e}"
        self.raw[name] = value
        print(json.dumps({"step": name, "value": value}), flush=True)
        return value


def smi(*query):
    out = subprocess.run(["nvidia-smi", *query, "--format=csv,noheader,nounits"], check=True, capture_output=True,
                         text=True, timeout=20).stdout
    return [line.strip() for line in out.splitlines() if line.strip()]


def used():
    """Returns the MiB of the GPU that are in use."""
    return int(smi("--query-gpu=memory.used", "-i", os.environ["CUDA_VISIBLE_DEVICES"])[0])


def shown(pid):
    """Says whether nvidia-smi lists the process."""
    return any(int(line) == pid for line in smi("--query-compute-apps=pid"))


def helper(**options):
    """Starts a worker that can save others."""
    h = Worker(**options)
    code = h.ask("init")
    if code:
        raise RuntimeError(f"cuInit returned {code}")
    return h


def cycle(h, t, timeout=12.0):
    """Saves and restores t by h, and returns the codes and seconds."""
    codes, before = {}, used()
    for name in ("GetState", "GetRestoreThreadId", "Lock", "Checkpoint", "Restore", "Unlock"):
        codes[name] = h.ask("step", name, t.pid, timeout=timeout)
        if name == "Checkpoint":
            codes["GPU MiB"] = [before, used()]
        if codes[name][0] and name not in ("GetState", "GetRestoreThreadId"):
            if name != "Lock":  # leave no locked process behind
                codes["state"] = h.ask("step", "GetState", t.pid)
                codes["Unlock after it"] = h.ask("step", "Unlock", t.pid)
            break
    codes["right"] = t.ask("right")
    return codes


def brief(codes):
    """Returns the codes of a cycle as text."""
    if not isinstance(codes, dict):
        return str(codes)
    bad = [f"{name} {value[0]}" for name, value in codes.items() if isinstance(value, list) and name not in ("GPU MiB", "calls") and value[0]]
    return (", ".join(bad) or "all succeed") + (", right" if codes.get("right") is True else f", right: {codes.get('right')}")


# Which calls another process may make.

def sibling(step):
    """An unprivileged helper beside an unprivileged process; then other relations between the two."""
    scope = None
    if os.path.exists(YAMA):
        with open(YAMA) as f:
            scope = int(f.read())
    step("yama", lambda: scope)
    values = (0, 1) if scope is not None and os.access(YAMA, os.W_OK) else ("as it is",)
    rows = {}

    def once(name, t, **options):
        with helper(uid=NOBODY, **options) as h:
            rows[name] = step(name, cycle, h, t)

    def scopes(value):
        if len(values) > 1:
            with open(YAMA, "w") as f:
                f.write(str(value))

    def as_scope_1(t):
        def judge(entry):
            if entry["call"] in ("ptrace", "process_vm_readv", "process_vm_writev", "pidfd_getfd"):
                return errno.EPERM
            return errno.EACCES if entry["what"].startswith("/proc/") and entry["what"].endswith("/mem") else None
        trap = [c for c in CALLS if c not in ("ioctl", "stat", "lstat", "access", "statx", "newfstatat")]
        for name, verdict in (("its calls", None), ("without what scope 1 refuses", judge)):
            def traced():
                with Worker(uid=NOBODY, nnp=True, trap=trap, judge=verdict) as h:
                    h.ask("init")
                    h.trap.log.clear()
                    codes = cycle(h, t)
                    seen = collections.Counter(f"{e['call']} {e['what']}".replace(str(t.pid), "T").replace(str(h.pid), "H")
                                               for e in h.trap.log)
                    return dict(codes, calls=[f"{n} x {c}" for n, c in list(seen.items())[:60]])
            rows[name] = step(name, traced)

    try:
        for nnp in (True, False):
            with Worker(uid=NOBODY, nnp=nnp) as t:
                name = "with no_new_privs" if nnp else "without"
                if isinstance(step(f"start {name}", t.ask, "start", 256), str):
                    continue
                for value in values:
                    scopes(value)
                    once(f"sibling, {name}, scope {value}", t, nnp=nnp)
                if nnp:
                    as_scope_1(t)
                    continue
                step("prctl", t.ask, "prctl", 0x59616D61, os.getpid())  # PR_SET_PTRACER
                once("the parent named", t)
                rows["another uid"] = step("another uid", other_uid, t)
                t.ask("prctl", 4, 0)  # PR_SET_DUMPABLE
                once("not dumpable", t)
                t.ask("prctl", 4, 1)
                once("dumpable again", t)

        def ancestor():
            with Worker(uid=NOBODY, nnp=True) as h:
                return h.ask("ancestor", 256, timeout=30)
        rows["ancestor"] = step("ancestor", ancestor)
    finally:
        scopes(scope)
    first = next((v for k, v in rows.items() if k.startswith("sibling")), None)
    calls = rows.get("its calls")
    touched = [c for c in calls["calls"] if "/T" in c or c.split()[0] not in ("open", "openat")] if isinstance(calls, dict) else []
    text = f"Yama scope: {'absent' if scope is None else scope}. " + "; ".join(f"{k}: {brief(v)}" for k, v in rows.items())
    return isinstance(first, dict) and first.get("right") is True and "Unlock" in first and not first["Unlock"][0], \
        f"{text}. The helper's calls: {'; '.join(touched)[:700]}"


def other_uid(t):
    with helper(uid=NOBODY - 1) as h:
        return cycle(h, t)


def helped(step):
    """Memory and time of a helper."""
    with Worker(uid=NOBODY, nnp=True) as h, Worker(uid=NOBODY, nnp=True) as t:
        step("empty", h.ask, "memory")
        step("state before cuInit", h.ask, "step", "GetState", t.pid)
        step("with libcuda", h.ask, "memory")
        before = step("GPU MiB before", used)
        began = time.monotonic()
        step("cuInit", h.ask, "init")
        step("cuInit s", lambda: round(time.monotonic() - began, 3))
        step("with cuInit", h.ask, "memory")
        step("nvidia-smi lists it", shown, h.pid)
        step("GPU MiB by it", lambda: used() - before)
        step("its open devices", lambda: sorted(os.readlink(f"/proc/{h.pid}/fd/{fd}") for fd in os.listdir(f"/proc/{h.pid}/fd")
                                                if "nvidia" in os.readlink(f"/proc/{h.pid}/fd/{fd}")))
        step("a process without CUDA", lambda: [h.ask("step", n, t.pid) for n in ("GetState", "GetRestoreThreadId")])
        step("no process", lambda: [h.ask("step", n, 4194303) for n in ("GetState", "GetRestoreThreadId")])
        step("cuInit only", lambda: [t.ask("init")] + [h.ask("step", n, t.pid) for n in ("GetState", "GetRestoreThreadId")])
        step("context", t.ask, "start", 256)
        step("calls", cycle, h, t)
        step("after the calls", h.ask, "memory")
        step("GPU MiB by it after", lambda: shown(h.pid))

        def never():
            with Worker(uid=NOBODY, nnp=True) as other:
                return [other.ask("step", n, t.pid) for n in ("GetState", "GetRestoreThreadId", "Lock", "Checkpoint", "Restore", "Unlock")]
        step("calls without cuInit", never)
        step("right", t.ask, "right")

        def again():
            with Worker() as other:
                times = []
                for name in ("dlopen", "init"):
                    began = time.monotonic()
                    other.ask(name)
                    times.append(round(time.monotonic() - began, 3))
                return times
        step("second start: dlopen, cuInit s", again)
    r = step.raw
    return None, "; ".join(f"{k}: {v}" for k, v in r.items())[:1500]


# Host memory.

def mappings(pid):
    """Returns the MiB of RSS by kind of mapping, and by its flags of interest."""
    sizes, key, rss = collections.Counter(), None, 0
    with open(f"/proc/{pid}/smaps") as f:
        for line in f:
            words = line.split()
            if "-" in words[0] and not words[0].endswith(":"):
                key = f"{words[5] if len(words) > 5 else 'anonymous'} {words[1]}"
            elif words[0] == "Rss:":
                rss = int(words[1])
            elif words[0] == "VmFlags:":
                flags = " ".join(w for w in words[1:] if w in ("lo", "io", "pf", "dd", "ht", "hg", "sh"))
                sizes[f"{key} [{flags}]"] += rss
    return {k: round(v / 1024, 1) for k, v in sizes.items() if v > 1024}


def grown(before, after):
    rows = {k: round(after.get(k, 0) - before.get(k, 0), 1) for k in {*before, *after}}
    return dict(sorted(((k, v) for k, v in rows.items() if abs(v) >= 4), key=lambda r: -abs(r[1]))[:8])


def available():
    with open("/proc/meminfo") as f:
        return next(int(line.split()[1]) / 1024 for line in f if line.startswith("MemAvailable"))


class Sampler(threading.Thread):
    """Looks at a process's memory and the machine's every 10 ms."""

    def __init__(self, pid):
        super().__init__(daemon=True)
        self.pid, self.stop, self.least, self.samples = pid, threading.Event(), available(), 0
        self.most = {"VmRSS": 0.0, "VmLck": 0.0, "VmPin": 0.0, "RssShmem": 0.0, "RssAnon": 0.0}
        self.before = self.least
        self.start()

    def run(self):
        while not self.stop.wait(0.01):
            fields = status(self.pid)
            self.most = {k: max(v, fields.get(k) or 0) for k, v in self.most.items()}
            self.least, self.samples = min(self.least, available()), self.samples + 1

    def end(self):
        self.stop.set()
        self.join(5)
        now = status(self.pid)
        return {"most": {k: round(v) for k, v in self.most.items()}, "after": {k: round(now.get(k) or 0) for k in self.most},
                "available fell by": round(self.before - self.least), "and is lower by": round(self.before - available()),
                "samples": self.samples}


class Group:
    """A memory cgroup, of version 2 or 1."""

    def __init__(self):
        self.mounted, root, two = None, None, True
        with open("/proc/mounts") as f:
            mounts = [line.split() for line in f]
        for _, path, kind, flags, *_ in mounts:
            if kind == "cgroup" and "memory" in flags.split(","):
                root, two = path, False
            if kind == "cgroup2" and not root and "memory" in self.read(path, "cgroup.controllers"):
                root = path
        if not root:
            root = self.mounted = tempfile.mkdtemp()
            subprocess.run(["mount", "-t", "cgroup2", "none", root], check=True, capture_output=True, timeout=10)
        if two:
            with open(os.path.join(root, "cgroup.subtree_control"), "w") as f:
                f.write("+memory")
        self.path = os.path.join(root, f"ekg-gpucheck-{os.getpid()}")
        os.mkdir(self.path)
        self.names = ("memory.current", "memory.peak") if two else ("memory.usage_in_bytes", "memory.max_usage_in_bytes")

    @staticmethod
    def read(*path):
        try:
            with open(os.path.join(*path)) as f:
                return f.read()
        except OSError:
            return ""

    def add(self, pid):
        with open(os.path.join(self.path, "cgroup.procs"), "w") as f:
            f.write(str(pid))

    def figures(self):
        stat = dict(line.split() for line in self.read(self.path, "memory.stat").splitlines())
        keys = ("anon", "file", "shmem", "unevictable", "kernel", "rss", "cache", "mapped_file")
        return {n: int(self.read(self.path, n) or 0) >> 20 for n in self.names} | {k: int(stat[k]) >> 20 for k in keys if k in stat}


def peaked(step):
    """Host memory while a process is saved and restored."""
    texts = []
    group = None
    try:
        group = Group()
    except Exception as e:
        step("cgroup", lambda: f"none: {e}")
    with helper() as h:
        for mib in (1024, 8192):
            with Worker(uid=NOBODY, nnp=True) as t:
                if group:
                    step(f"{mib} cgroup", group.add, t.pid)
                step(f"{mib} start", t.ask, "start", mib)
                maps = {"before": mappings(t.pid)}
                begin = memory(t.pid)
                h.ask("step", "Lock", t.pid)
                result = {"before": begin}
                for name in ("Checkpoint", "Restore"):
                    sampler = Sampler(t.pid)
                    h.send("step", name, t.pid)
                    result[name] = h.reply(40)
                    result[name + " memory"] = sampler.end()
                    began = time.monotonic()
                    result[name + " after"] = memory(t.pid)
                    result["look s"] = round(time.monotonic() - began, 3)
                    maps[name] = mappings(t.pid)
                    if group:
                        result[name + " cgroup"] = group.figures()
                h.ask("step", "Unlock", t.pid)
                result["grown by save"] = grown(maps["before"], maps["Checkpoint"])
                result["left after restore"] = grown(maps["before"], maps["Restore"])
                result["right"] = t.ask("right")
                step(str(mib), lambda: result)
                most = result["Checkpoint memory"]
                texts.append(f"{mib} MiB: before {begin['rss']:.0f} MiB, highest {most['most']['VmRSS']} in the save and "
                             f"{result['Restore memory']['most']['VmRSS']} in the restore, {most['after']['VmRSS']} saved, "
                             f"{result['Restore memory']['after']['VmRSS']} restored; locked {most['most']['VmLck']}, pinned "
                             f"{most['most']['VmPin']}; available fell by {most['available fell by']}; cgroup "
                             f"{result.get('Checkpoint cgroup')}; grown {result['grown by save']}; left {result['left after restore']}")
    if group:
        try:
            os.rmdir(group.path)
        except OSError:
            pass
        if group.mounted:
            subprocess.run(["umount", group.mounted], timeout=10)
    return None, ". ".join(texts)


def copied(step):
    """Times against plain copies."""
    texts = []
    for mib in (1024, 4096):
        with helper() as h, Worker() as t:
            step(f"{mib} start", t.ask, "start", 64)
            copies = step(f"{mib} copies, GiB/s", lambda: t.ask("copies", mib))
            t.ask("hold", mib)
            codes = step(f"{mib} save", cycle, h, t, 30.0)
            texts.append(f"{mib} MiB: {copies}; save {codes['Checkpoint'][1]} s, restore {codes['Restore'][1]} s")
    return None, ". ".join(texts)


# What is beside the process.

def forked(step):
    """Saves a process with forked children, and one beside another process with CUDA."""
    for when in ("after CUDA", "before CUDA"):
        def run():
            with helper() as h, Worker() as other, Worker() as t:
                other.ask("start", 256)
                child = None if when == "after CUDA" else t.ask("fork")
                t.ask("start", 1024)
                child = child or t.ask("fork")
                try:
                    with open(f"/proc/{child}/maps") as f:
                        held = sum("/dev/nvidia" in line for line in f)
                    fds = sum("nvidia" in os.readlink(f"/proc/{child}/fd/{fd}") for fd in os.listdir(f"/proc/{child}/fd"))
                    result = {"child's mappings of devices": held, "child's open devices": fds,
                              "child": [h.ask("step", n, child) for n in ("GetState", "GetRestoreThreadId")]}
                    result["calls"] = cycle(h, t)
                    result["the other process"] = other.ask("right")
                    return result
                finally:
                    os.kill(child, signal.SIGKILL)
        step("a child forked " + when, run)
    texts = []
    for name, result in step.raw.items():
        if isinstance(result, dict):
            calls = result["calls"]
            result = f"{brief(calls)}, {dict(result, calls='GPU MiB ' + str(calls.get('GPU MiB')))}"
        texts.append(f"{name}: {result}")
    return None, "; ".join(texts)


def blocked(step):
    """Calls of CUDA, other threads and SIGINT while a process is saved."""
    with helper() as h, Worker() as t:
        t.ask("start", 2048)
        names = ("allocate", "synchronize", "info", "count", "init", "nvml")
        t.ask("prepare", *names)
        t.ask("tick")
        time.sleep(0.5)
        step("counts in 0.5 s before", t.ask, "ticks")
        for name in ("Lock", "Checkpoint"):
            step(name, h.ask, "step", name, t.pid)
            step(f"counts and longest pause in {name}", t.ask, "ticks")
        waits = {}
        for name in names:
            tid = t.ask("begin", name)
            time.sleep(0.15)
            path = f"/proc/{t.pid}/task/{tid}/"
            waits[name] = [Group.read(path, n).split("\n")[0][:60] for n in ("wchan", "syscall")]
        step("threads", lambda: waits)
        step("ended while saved", t.ask, "ended")
        t.send("right")  # in the main thread

        def interrupt():
            time.sleep(0.3)
            os.kill(t.pid, signal.SIGINT)
            try:
                return t.reply(2)
            except Silent:
                return "SIGINT: no answer in 2 s"
        step("SIGINT while the main thread waits", interrupt)
        step("still saved", h.ask, "step", "GetState", t.pid)
        step("Restore", h.ask, "step", "Restore", t.pid)
        time.sleep(0.3)
        began = time.monotonic()
        step("Unlock", h.ask, "step", "Unlock", t.pid)
        step("answer of the main thread", lambda: t.reply(10))
        step("it came after s", lambda: round(time.monotonic() - began, 3))
        time.sleep(0.3)
        step("counts and longest pause until the end", t.ask, "ticks")
        step("ended", t.ask, "ended")
        step("right", t.ask, "right")

        def plain():
            h.ask("step", "Lock", t.pid)
            h.ask("step", "Checkpoint", t.pid)
            t.ask("ticks")
            h.send("step", "Restore", t.pid)
            times = []
            while len(times) < 200:
                began = time.monotonic()
                t.ask("ended")
                times.append(round(time.monotonic() - began, 4))
                try:
                    code = h.reply(0.002)
                    break
                except Silent:
                    code = None
            return {"Restore": code or h.reply(20), "cells": len(times), "slowest": max(times),
                    "ticks": t.ask("ticks"), "Unlock": h.ask("step", "Unlock", t.pid)}
        step("cells without CUDA while it is restored", plain)
    return step.raw["right"] is True, "; ".join(f"{k}: {v}" for k, v in step.raw.items())[:1600]


def graphed(step):
    """A stream, a graph and pinned memory; and PyTorch."""
    with helper() as h:
        def driver():
            with Worker() as t:
                t.ask("start", 256)
                t.ask("launchable")
                counts = [t.ask("replay"), t.ask("replay")]
                return {"calls": cycle(h, t), "counts": counts + [t.ask("replay"), t.ask("replay")]}
        result = step("driver's graph", driver)
        good = isinstance(result, dict) and result["counts"] == [[1], [2], [3], [4]] and result["calls"]["right"] is True

        def torched():
            with Worker() as t:
                sizes, times, before = {}, {}, used()
                for name, args in (("torch", ()), ("torch_available", ()), ("torch_zeros", ()), ("torch_matmul", ()),
                                   ("torch_make", (2048,)), ("torch_replay", ())):
                    began = time.monotonic()
                    value = t.ask(name, *args, timeout=60)
                    times[name] = [value, round(time.monotonic() - began, 2)]
                    sizes[name] = [used() - before, round(memory(t.pid)["rss"])]
                calls = {}
                for name in ("Lock", "Checkpoint"):
                    calls[name] = h.ask("step", name, t.pid, timeout=30)
                calls["GPU MiB"], calls["memory"], calls["nvidia-smi lists it"] = used(), memory(t.pid), shown(t.pid)
                for name in ("Restore", "Unlock"):
                    calls[name] = h.ask("step", name, t.pid, timeout=30)
                began = time.monotonic()
                again = t.ask("torch_replay")
                return {"values and s": times, "GPU and host MiB": sizes, "calls": calls, "after": again,
                        "after s": round(time.monotonic() - began, 3)}
        result = step("PyTorch", torched)
        if isinstance(result, dict):
            good = good and result["after"]["right"] and result["after"]["count"] == result["values and s"]["torch_replay"][0]["count"] + 1
    return good, "; ".join(f"{k}: {v}" for k, v in step.raw.items())


def contended(step):
    """Another process has the memory that a saved process needs."""
    with helper() as h, Worker() as t:
        t.ask("start", 8192)
        for name in ("Lock", "Checkpoint"):
            step(name, h.ask, "step", name, t.pid)
        with Worker() as other:
            step("another process starts", other.ask, "start", 64)
            step("it fills the GPU, MiB", lambda: other.ask("fill", timeout=30))
            step("Restore without memory", lambda: h.ask("step", "Restore", t.pid, timeout=12))
            step("state", h.ask, "step", "GetState", t.pid)
            step("GPU MiB", used)
            step("the other process", other.ask, "right")
        end = time.monotonic() + 10
        while (step("GPU MiB after its end", used) if time.monotonic() < end else 0) > 2048:
            time.sleep(0.1)
        step("Restore with memory", lambda: h.ask("step", "Restore", t.pid, timeout=12))
        step("state after it", h.ask, "step", "GetState", t.pid)
        step("Unlock", h.ask, "step", "Unlock", t.pid)
        step("right", t.ask, "right")
    return step.raw["right"] is True, "; ".join(f"{k}: {v}" for k, v in step.raw.items())


# The filter.

def seen(log, phase=None):
    """Returns the ioctls of devices in the order of their first time, with their counts."""
    counts = collections.Counter(e["what"] for e in log if phase in (None, e["phase"]) and "nvidia" in e["what"])
    return dict(counts)


def ordered(step):
    """Which ioctls come when."""
    phases, early = {}, set()

    def program(name, *argv):
        def run():
            with Worker(trap=["ioctl"], argv=[shutil.which(argv[0]), *argv[1:]]) as w:
                w.process.stdin.close()
                w.process.stdout.read()
                w.process.wait(20)
                return seen(w.trap.log)
        phases[name] = step(name, run)

    def worker(kind, *operations, **options):
        try:
            with Worker(trap=["ioctl"], **options) as w:
                for name, *args in operations:
                    began = time.monotonic()
                    value = step(f"{kind} {name} answers", lambda: w.ask(name, *args, timeout=40))
                    phases[f"{kind} {name}"] = step(f"{kind} {name}", seen, w.trap.log, name)
                    step(f"{kind} {name} s", lambda: round(time.monotonic() - began, 3))
                    if str(value).startswith(("RuntimeError", "Silent", "BrokenPipe")):
                        return
        except Exception as e:
            step(kind, lambda: f"{type(e).__name__}: {e}")

    program("nvidia-smi", "nvidia-smi")
    program("nvidia-smi -L", "nvidia-smi", "-L")
    worker("NVML", ("nvml",), ("nvml_memory",))
    worker("CUDA", ("dlopen",), ("init",), ("count",), ("describe",), ("context",), ("allocate",), ("launchable",),
           ("bump",), ("replay",), ("synchronize",), ("release",), uid=NOBODY, nnp=True)
    worker("torch", ("torch",), ("torch_available",), ("torch_count",), ("torch_name",), ("torch_zeros",),
           ("torch_matmul",))
    worker("torch by NVML", ("torch",), ("torch_available",), ("torch_count",),
           env={"PYTORCH_NVML_BASED_CUDA_CHECK": "1"})

    def plain():
        with Worker(uid=NOBODY, nnp=True) as w:
            return w.ask("start", 1)
    plain = step("without a filter, s", plain)
    late = ("context", "allocate", "launchable", "bump", "replay", "synchronize", "release", "zeros", "matmul")
    for name, counts in phases.items():
        if not name.endswith(late) and isinstance(counts, dict):
            early |= set(counts)
    context = phases.get("CUDA context")
    only = [w for w in context if w not in early] if isinstance(context, dict) else []
    step("only from the first context on", lambda: only)
    parts = [f"cuInit {step.raw.get('CUDA init s')} s and context {step.raw.get('CUDA context s')} s, without the filter {plain}"]
    quiet = []
    for name, counts in phases.items():
        uvm = [k.split(" ", 1)[1] for k in counts if k.startswith("nvidia-uvm ")] if isinstance(counts, dict) else [counts]
        if uvm:
            parts.append(f"{name}: nvidia-uvm {', '.join(uvm)}")
        else:
            quiet.append(f"{name} ({sum(counts.values())})")
    parts.append(f"without nvidia-uvm (calls): {', '.join(quiet)}")
    return None, f"only from the first context on, in order: {only[:12]}. " + "; ".join(parts)


def gated(step):
    """What a program sees when one of CUDA's ioctls is held, refused, or interrupted."""
    def judged(what, first, then=None, times=1):
        """A judge that gives its verdict for the first calls of this kind."""
        count = [0]
        def judge(entry):
            if entry["what"] != what:
                return None
            count[0] += 1
            return first if count[0] <= times else then
        return judge

    def start(w):
        """Makes a context and returns codes and seconds."""
        texts = []
        for name in ("init", "context"):
            began = time.monotonic()
            code = w.ask(name)
            texts.append(f"{name} {code} in {time.monotonic() - began:.2f} s")
            if code:
                break
        return ", ".join(texts)

    def held(what):
        with Worker(uid=NOBODY, nnp=True, trap=["ioctl"], judge=judged(what, 1.0)) as w:
            w.ask("tick")
            result = start(w)
            ticks = w.ask("ticks")
            w.ask("hold", 64)
            return f"{result}, longest pause of a thread {ticks[1]} s, right {w.ask('right')}"

    def refused(what, error):
        with Worker(uid=NOBODY, nnp=True, trap=["ioctl"], judge=judged(what, error)) as w:
            return f"{start(w)}; again {start(w)}"

    def interrupted(what, killable=False):
        """Sends SIGINT while the call is held for 2 s, and again afterwards tries to make a context."""
        with Worker(uid=NOBODY, nnp=True, trap=["ioctl"], judge=judged(what, 2.0, times=2), killable=killable) as w:
            w.ask("quiet")
            began = time.monotonic()
            def calls():
                return [round(e["t"] - began, 2) for e in w.trap.log if e["what"] == what]
            texts = []
            for name in ("init", "context"):
                count, sent = len(calls()), None
                w.send(name)
                while not sent and not select.select([w.process.stdout], [], [], 0.02)[0]:
                    if len(calls()) > count:
                        time.sleep(0.3)
                        os.kill(w.pid, signal.SIGINT)
                        sent = time.monotonic()
                code = w.reply(8)
                if sent:
                    texts.append(f"{name} {code} {time.monotonic() - sent:.2f} s after SIGINT")
                    break
            return f"{', '.join(texts)}, calls at {calls()}; again {start(w)}"

    def closed():
        with Worker(uid=NOBODY, nnp=True, trap=["ioctl"]) as w:
            w.ask("dlopen")
            w.trap.close()
            return start(w)

    def closed_later():
        with Worker(uid=NOBODY, nnp=True, trap=["ioctl"]) as w:
            w.ask("init")
            w.trap.close()
            return start(w)

    def candidates():
        """Returns the first ioctls that only a context needs: of any device, and of nvidia-uvm."""
        with Worker(uid=NOBODY, nnp=True, trap=["ioctl"]) as w:
            for name in ("init", "count", "describe", "context"):
                w.ask(name)
            late = seen(w.trap.log, "context")
            early = seen(e for e in w.trap.log if e["phase"] != "context")
        only = [what for what in late if what not in early]
        return only[:1] + [what for what in only[1:] if what.startswith("nvidia-uvm")][:1]

    found = step("candidates", candidates)
    found = found if isinstance(found, list) and found else [VASPACE]
    for what in dict.fromkeys(found + [INITIALIZE]):
        step(f"{what} held 1 s", held, what)
        step(f"{what} SIGINT", interrupted, what)
        step(f"{what} SIGINT, filter with WAIT_KILLABLE_RECV", interrupted, what, True)
    for error in ("EINTR", "EAGAIN", "EBUSY", "EIO"):
        step(f"{found[-1]} {error}", refused, found[-1], getattr(errno, error))
    step(f"{INITIALIZE} EBUSY", refused, INITIALIZE, errno.EBUSY)
    step("listener closed before cuInit", closed)
    step("listener closed before the context", closed_later)
    return None, "; ".join(f"{k}: {v}" for k, v in step.raw.items())


def trapped(step):
    """Saves and restores a process whose ioctls are trapped."""
    with helper() as h, Worker(uid=NOBODY, nnp=True, trap=["ioctl"]) as t:
        step("start", t.ask, "start", 512)
        for round_ in ("answered", "not answered"):
            for name in ("Lock", "Checkpoint", "Restore", "Unlock"):
                t.trap.phase = f"{name} {round_}"
                if round_ == "not answered":
                    t.trap.running.clear()
                    time.sleep(0.2)
                h.send("step", name, t.pid)

                def reply():
                    try:
                        return h.reply(2 if round_ == "not answered" else 15)
                    except Silent:
                        t.trap.running.set()
                        return ["no answer in 2 s; when the calls are answered:", h.reply(15)]
                step(f"{name} {round_}", reply)
                t.trap.running.set()
                if calls := seen(t.trap.log, t.trap.phase):
                    step(f"{name} {round_}, calls", lambda: calls)
        step("their threads", lambda: dict(collections.Counter(
            "main" if e["pid"] == t.pid else "another" for e in t.trap.log if "nvidia" in e["what"] and e["phase"] != "start")))
        step("right", t.ask, "right")
    return step.raw["right"] is True, "; ".join(f"{k}: {v}" for k, v in step.raw.items())


# Trouble.

def killed(step):
    """A helper that is killed in the middle of a save and of a restore."""
    for name, after in (("Checkpoint", 0.5), ("Restore", 0.3)):
        def run():
            with helper() as first, helper() as second, Worker() as t:
                t.ask("start", 4096)
                first.ask("step", "Lock", t.pid)
                if name == "Restore":
                    first.ask("step", "Checkpoint", t.pid)
                first.send("step", name, t.pid)
                time.sleep(after)
                first.process.kill()
                began, seen_, last, rss = time.monotonic(), [], None, []
                try:
                    while time.monotonic() < began + 8:
                        state = second.ask("step", "GetState", t.pid, timeout=15)
                        if state != last:
                            seen_.append([round(time.monotonic() - began, 2), *state])
                            last, changed = state, time.monotonic()
                        now = round(memory(t.pid)["rss"])
                        if not rss or abs(now - rss[-1][1]) > 64:
                            rss.append([round(time.monotonic() - began, 2), now])
                            changed = time.monotonic()
                        if time.monotonic() > changed + 3:
                            break
                        time.sleep(0.05)
                except Silent as e:
                    seen_.append(f"GetState: {e}")
                result = {"states": seen_, "rss": rss[:3] + rss[-3:], "GPU MiB": used()}
                steps = {0: (), 1: ("Unlock",), 2: ("Restore", "Unlock")}.get(last and last[1], ("Restore", "Unlock"))
                for s in steps:
                    result[s] = second.ask("step", s, t.pid, timeout=15)
                result["state"] = second.ask("step", "GetState", t.pid)
                result["right"] = t.ask("right", timeout=10)
                result["saved again"] = brief(cycle(second, t))
                return result
        step(f"killed {after} s after the begin of {name}", run)
    return None, "; ".join(f"{k}: {v}" for k, v in step.raw.items())


def appeared(step):
    """Device nodes that come when the process runs already."""
    all_ = sorted(n for n in os.listdir("/dev") if n.startswith("nvidia"))
    one = [n for n in all_ if n[6:].isdigit()]
    step("nodes", lambda: all_)

    def probe():
        with Worker(uid=NOBODY, hide=one) as w:
            w.ask("memory")
            w.appear(one)
        return True
    apart = step("in a mount namespace", probe) is True  # else a filter answers ENOENT
    for name, nodes in (("only nvidiaN missing", one), ("all missing", all_)):
        def case(*operations, before=True, again=()):
            options = {"hide": nodes} if apart else {"trap": [n for n, (_, path) in CALLS.items() if path is not None],
                                                     "judge": lambda e: missing and e["what"] in missing and errno.ENOENT}
            missing = {"/dev/" + n for n in nodes}
            with Worker(uid=NOBODY, nnp=True, **options) as w:
                def ask(o):
                    try:
                        return {o: w.ask(o, timeout=30)}
                    except (RuntimeError, Silent) as e:
                        return {o: str(e)[-120:]}
                result = {"before": [ask(o) for o in (operations if before else operations[:1])]}
                if apart:
                    w.appear(nodes)
                missing.clear()
                result["after"] = [ask(o) for o in again or operations]
                return result
        step(f"{name}, asked before", case, "init", "count", "context")
        step(f"{name}, not asked", lambda: case("dlopen", "init", "count", "context", before=False))
        step(f"{name}, NVML", case, "nvml")
        step(f"{name}, PyTorch asked before", lambda: case(
            "torch", "torch_available", "torch_count", again=("torch_available", "torch_count", "torch_zeros")))
        if name == "all missing":
            step(f"{name}, PyTorch not asked", lambda: case(
                "torch", before=False, again=("torch_available", "torch_count", "torch_zeros")))
    return None, "; ".join(f"{k}: {v}" for k, v in step.raw.items())


CHECKS = [
    ("helped", "Memory and time of a process that saves others.", "a helper without a context of its own", helped, 25),
    ("sibling", "An unprivileged process can save a process of the same user.",
     "both with uid 65534 and no capabilities, beside each other; then in other relations", sibling, 80),
    ("ordered", "Some ioctls of CUDA occur from the first context on, and not before.",
     "`nvidia-smi`, NVML, CUDA and PyTorch under a seccomp filter that hands each ioctl to this check", ordered, 60),
    ("gated", "CUDA waits when an ioctl is held, and goes on right.",
     "ioctls of `/dev/nvidia-uvm` held for 1 s, interrupted, refused; the filter's listener closed", gated, 50),
    ("peaked", "Host memory while a process is saved.", "1 and 8 GiB, looked at every 10 ms", peaked, 50),
    ("copied", "Times against plain copies.", "1 and 4 GiB; GiB per second", copied, 30),
    ("forked", "A process with a forked child can be saved.",
     "1 GiB; the child does nothing; another process has 256 MiB", forked, 25),
    ("blocked", "A saved process goes on without CUDA, and its calls of CUDA wait.", "2 GiB saved, with threads", blocked, 35),
    ("graphed", "A stream, a graph and PyTorch are right after a restore.", "a graph that adds one; 2 GiB in PyTorch",
     graphed, 60),
    ("contended", "A restore without enough free memory harms nobody.", "8 GiB saved, and the GPU full", contended, 40),
    ("trapped", "A process under the filter can be saved.", "its ioctls answered, and not answered", trapped, 40),
    ("appeared", "What sees a device node that comes later.", "a `/dev` without NVIDIA's nodes, which are mounted later",
     appeared, 50),
    ("killed", "What is left when a helper is killed.", "4 GiB; killed in the save, and in the restore", killed, 55),
]


def run(name, limit, uuid):
    """Runs a check in a process of its own, and returns its result and the results of its steps."""
    raw, passed, text, began = {}, False, None, time.monotonic()
    with tempfile.TemporaryDirectory(prefix="ekg-gpucheck-") as folder:
        os.chmod(folder, 0o755)
        here = os.path.dirname(os.path.abspath(__file__))
        for module in ("gpuworker.py", "gpuparked.py"):  # where every user may read them
            shutil.copy(os.path.join(here, module), folder)
            os.chmod(os.path.join(folder, module), 0o644)
        p = subprocess.Popen([sys.executable, "-B", os.path.join(folder, "gpuparked.py"), name], text=True,
                             start_new_session=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                             env=dict(os.environ, CUDA_VISIBLE_DEVICES=uuid))

        def end():
            try:
                os.killpg(p.pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
        timer = threading.Timer(limit, end)
        timer.daemon = True
        timer.start()
        for line in p.stdout:
            answer = json.loads(line)
            if "step" in answer:
                raw[answer["step"]] = answer["value"]
            else:
                passed, text = answer["passed"], answer["text"]
        timer.cancel()
        end()
        said = p.communicate(timeout=10)[1].strip()[-300:]
    raw["seconds"] = round(time.monotonic() - began, 1)
    if text is None:
        over = f"ended by its limit of {limit} s" if raw["seconds"] > limit - 0.5 else said
        text = f"{over}; until then: " + json.dumps(raw)[:900]
    return passed, text.replace("'", "")[:1500], raw


def main(name):
    check = next(c[3] for c in CHECKS if c[0] == name)
    step = Steps()
    try:
        passed, text = check(step)
    except Exception as e:
        passed, text = False, f"{type(e).__name__}: {e}; until then: {json.dumps(step.raw)[:900]}"
    print(json.dumps({"passed": passed, "text": text}), flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
