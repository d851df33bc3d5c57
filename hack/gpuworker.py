"""Processes for the checks of hack/gpucheck: workers that call NVIDIA's driver when they are told to.

A Worker is a process of its own. It reads an operation and its arguments as a line of JSON, and answers with a line.
So a call that hangs or ends its process is a result like any other. A worker may have another user, a filter on its
system calls (class Trap), or a /dev without some of its nodes.
"""
import ctypes
import errno
import fcntl
import functools
import json
import os
import select
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time

LIBC = ctypes.CDLL(None, use_errno=True)
NOBODY = 65534

# System calls of x86-64 with the number of the argument that is a path, or None.
CALLS = {"open": (2, 0), "stat": (4, 0), "lstat": (6, 0), "ioctl": (16, None), "access": (21, 0), "connect": (42, None),
         "kill": (62, None), "readlink": (89, 0), "ptrace": (101, None), "mknod": (133, 0), "tgkill": (234, None),
         "openat": (257, 1), "mknodat": (259, 1), "newfstatat": (262, 1), "readlinkat": (267, 1), "faccessat": (269, 1),
         "process_vm_readv": (310, None), "process_vm_writev": (311, None), "statx": (332, 1), "pidfd_open": (434, None),
         "openat2": (437, 1), "pidfd_getfd": (438, None), "faccessat2": (439, 1)}
NAMES = {number: name for name, (number, _) in CALLS.items()}

# bump adds one to each number.
PTX = b""".version 6.0
.target sm_50
.address_size 64
.visible .entry bump(.param .u64 numbers)
{
  .reg .b32 %r<6>;
  .reg .b64 %rd<5>;
  ld.param.u64 %rd1, [numbers];
  cvta.to.global.u64 %rd2, %rd1;
  mov.u32 %r1, %ctaid.x;
  mov.u32 %r2, %ntid.x;
  mov.u32 %r3, %tid.x;
  mad.lo.s32 %r4, %r1, %r2, %r3;
  mul.wide.u32 %rd3, %r4, 4;
  add.s64 %rd4, %rd2, %rd3;
  ld.global.u32 %r5, [%rd4];
  add.u32 %r5, %r5, 1;
  st.global.u32 [%rd4], %r5;
  ret;
}
"""


class Silent(Exception):
    """A worker that does not answer."""


def checked(value, what):
    if value < 0:
        raise OSError(ctypes.get_errno(), f"{what}: {os.strerror(ctypes.get_errno())}")
    return value


def status(pid):
    """Returns /proc/PID/status; sizes in MiB."""
    fields = {}
    with open(f"/proc/{pid}/status") as f:
        for line in f:
            key, _, value = line.partition(":")
            value = value.strip()
            fields[key] = int(value.split()[0]) / 1024 if value.endswith(" kB") else value
    return fields


def memory(pid):
    """Returns RSS, PSS and threads of a process; sizes in MiB."""
    fields, pss = status(pid), None
    try:
        with open(f"/proc/{pid}/smaps_rollup") as f:
            pss = next(int(line.split()[1]) / 1024 for line in f if line.startswith("Pss:"))
    except OSError:
        pass
    return {"rss": round(fields["VmRSS"], 1), "pss": pss and round(pss, 1), "threads": int(fields["Threads"])}


# The worker's side.

class Operations:
    """What a worker can do. Each call of the driver that fails raises an error, unless its code is the result."""

    def __init__(self):
        self.lib, self.blocks, self.results, self.keep = None, [], {}, {}

    def cu(self, name, *args):
        code = self.code(name, *args)
        if code:
            raise RuntimeError(f"{name} returned {code}")

    def code(self, name, *args):
        self.lib = self.lib or ctypes.CDLL("libcuda.so.1")
        return getattr(self.lib, name)(*args)

    def memory(self):
        return memory(os.getpid())

    def dlopen(self):
        self.lib = ctypes.CDLL("libcuda.so.1")

    def init(self):
        return self.code("cuInit", 0)

    def count(self):
        n = ctypes.c_int(-1)
        return [self.code("cuDeviceGetCount", ctypes.byref(n)), n.value]

    def describe(self):
        """Asks what a program asks of a device before it uses it."""
        device, name, size, major = ctypes.c_int(), ctypes.create_string_buffer(64), ctypes.c_size_t(), ctypes.c_int()
        self.cu("cuDeviceGet", ctypes.byref(device), 0)
        self.cu("cuDeviceGetName", name, 64, device)
        self.cu("cuDeviceTotalMem_v2", ctypes.byref(size), device)
        self.cu("cuDeviceGetAttribute", ctypes.byref(major), 75, device)

    def context(self):
        """Makes a context and returns the code."""
        device, context = ctypes.c_int(), ctypes.c_void_p()
        code = self.code("cuDeviceGet", ctypes.byref(device), 0)
        code = code or self.code("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
        self.keep["context"] = context
        return code or self.code("cuCtxSetCurrent", context)

    def release(self):
        device = ctypes.c_int()
        self.cu("cuDeviceGet", ctypes.byref(device), 0)
        self.cu("cuDevicePrimaryCtxRelease_v2", device)

    def start(self, mib):
        """Starts CUDA and holds memory with known contents."""
        began = time.monotonic()
        self.cu("cuInit", 0)
        init = time.monotonic() - began
        if code := self.context():
            raise RuntimeError(f"the context returned {code}")
        context = time.monotonic() - began - init
        self.hold(mib)
        return {"cuInit": round(init, 3), "context": round(context, 3)}

    def hold(self, mib):
        """Allocates memory. Each MiB has a number of its own."""
        block = ctypes.c_uint64()
        self.cu("cuMemAlloc_v2", ctypes.byref(block), ctypes.c_size_t(mib << 20))
        for i in range(mib):
            self.cu("cuMemsetD32_v2", ctypes.c_uint64(block.value + (i << 20)), self.number(i), ctypes.c_size_t(1 << 18))
        self.cu("cuCtxSynchronize")
        self.blocks.append((block.value, mib))

    @staticmethod
    def number(i):
        return (0x9E3779B1 * (i + 1)) & 0xFFFFFFFF

    def right(self):
        """Says whether the memory has its contents; of a large block it looks at a part."""
        got = (ctypes.c_uint32 * (1 << 18))()
        for block, mib in self.blocks:
            for i in range(0, mib, max(1, mib // 256)):
                self.cu("cuMemcpyDtoH_v2", got, ctypes.c_uint64(block + (i << 20)), ctypes.c_size_t(1 << 20))
                want = struct.pack("<I", self.number(i))
                if bytes(got) != want * (1 << 18):
                    return False
        return True

    def fill(self):
        """Allocates nearly all memory that is free and returns it in MiB."""
        free, size = ctypes.c_size_t(), ctypes.c_size_t()
        self.cu("cuMemGetInfo_v2", ctypes.byref(free), ctypes.byref(size))
        got, chunk = 0, 8192
        while chunk >= 64:
            block = ctypes.c_uint64()
            if self.code("cuMemAlloc_v2", ctypes.byref(block), ctypes.c_size_t(chunk << 20)):
                chunk //= 2
            else:
                got += chunk
        return {"free": free.value >> 20, "got": got}

    def info(self):
        free, size = ctypes.c_size_t(), ctypes.c_size_t()
        code = self.code("cuMemGetInfo_v2", ctypes.byref(free), ctypes.byref(size))
        return [code, free.value >> 20]

    def allocate(self, mib=1):
        return self.code("cuMemAlloc_v2", ctypes.byref(ctypes.c_uint64()), ctypes.c_size_t(mib << 20))

    def synchronize(self):
        return self.code("cuCtxSynchronize")

    def step(self, name, pid):
        """Calls cuCheckpointProcessNAME and returns the code with the state or thread, or with the seconds."""
        if name in ("GetState", "GetRestoreThreadId"):
            answer = ctypes.c_int(-1)
            return [self.code("cuCheckpointProcess" + name, pid, ctypes.byref(answer)), answer.value]
        zero = (ctypes.c_uint64 * 8)()
        if name == "Lock":
            zero[0] = 2000  # milliseconds
        began = time.monotonic()
        code = self.code("cuCheckpointProcess" + name, pid, zero)
        return [code, round(time.monotonic() - began, 3)]

    def launchable(self):
        """Makes numbers on the device, a stream, and a graph that adds one to each of them; and pinned memory."""
        module, function, stream, graph, ready = (ctypes.c_void_p() for _ in range(5))
        block, pinned = ctypes.c_uint64(), ctypes.c_void_p()
        self.cu("cuMemAlloc_v2", ctypes.byref(block), ctypes.c_size_t(4 << 16))
        self.cu("cuMemsetD32_v2", block, 0, ctypes.c_size_t(1 << 16))
        self.cu("cuMemHostAlloc", ctypes.byref(pinned), ctypes.c_size_t(4 << 16), 0)
        self.cu("cuModuleLoadData", ctypes.byref(module), PTX)
        self.cu("cuModuleGetFunction", ctypes.byref(function), module, b"bump")
        self.cu("cuStreamCreate", ctypes.byref(stream), 1)
        self.keep["one"] = (function, block)
        self.cu("cuStreamBeginCapture_v2", stream, 0)
        self.bump(stream)
        self.cu("cuMemcpyDtoHAsync_v2", pinned, block, ctypes.c_size_t(4 << 16), stream)
        self.cu("cuStreamEndCapture", stream, ctypes.byref(graph))
        self.cu("cuGraphInstantiateWithFlags", ctypes.byref(ready), graph, ctypes.c_uint64(0))
        self.keep["graph"] = (ready, stream, pinned)

    def bump(self, stream=None):
        function, block = self.keep["one"]
        params = (ctypes.c_void_p * 1)(ctypes.cast(ctypes.byref(block), ctypes.c_void_p))
        self.cu("cuLaunchKernel", function, 256, 1, 1, 256, 1, 1, 0, stream, params, None)

    def replay(self):
        """Launches the graph and returns the numbers that are in pinned memory after it: one, if all are equal."""
        ready, stream, pinned = self.keep["graph"]
        self.cu("cuGraphLaunch", ready, stream)
        self.cu("cuStreamSynchronize", stream)
        return sorted(set((ctypes.c_uint32 * (1 << 16)).from_address(pinned.value)))[:4]

    def copies(self, mib):
        """Copies between device and host, and returns GiB per second, and the seconds to pin the memory."""
        size, block, pinned = ctypes.c_size_t(mib << 20), ctypes.c_uint64(), ctypes.c_void_p()
        self.cu("cuMemAlloc_v2", ctypes.byref(block), size)
        began = time.monotonic()
        self.cu("cuMemHostAlloc", ctypes.byref(pinned), size, 0)
        result = {"pin_s": round(time.monotonic() - began, 2)}
        plain = ctypes.create_string_buffer(mib << 20)
        ctypes.memset(plain, 1, mib << 20)
        for kind, host in (("pinned", pinned), ("pageable", plain)):
            for way in ("DtoH", "HtoD"):
                args = (host, block) if way == "DtoH" else (block, host)
                began = time.monotonic()
                self.cu(f"cuMemcpy{way}_v2", *args, size)
                self.cu("cuCtxSynchronize")
                result[f"{kind} {way}"] = round(mib / 1024 / (time.monotonic() - began), 1)
        self.cu("cuMemFreeHost", pinned)
        self.cu("cuMemFree_v2", block)
        return result

    def nvml(self):
        """Starts NVML if that has not been done, and returns the codes and the count of devices."""
        lib, n = ctypes.CDLL("libnvidia-ml.so.1"), ctypes.c_uint()
        started = lib.nvmlInit_v2()
        return [started, lib.nvmlDeviceGetCount_v2(ctypes.byref(n)), n.value]

    def nvml_memory(self):
        """Asks NVML for memory, use and processes of the first device."""
        lib, device, n = ctypes.CDLL("libnvidia-ml.so.1"), ctypes.c_void_p(), ctypes.c_uint(64)
        codes = [lib.nvmlInit_v2(), lib.nvmlDeviceGetHandleByIndex_v2(0, ctypes.byref(device))]
        codes.append(lib.nvmlDeviceGetMemoryInfo(device, ctypes.create_string_buffer(64)))
        codes.append(lib.nvmlDeviceGetUtilizationRates(device, ctypes.create_string_buffer(64)))
        processes = ctypes.create_string_buffer(64 * 64)
        return codes + [lib.nvmlDeviceGetComputeRunningProcesses_v3(device, ctypes.byref(n), processes)]

    def prctl(self, option, value):
        return checked(LIBC.prctl(option, ctypes.c_ulong(value), 0, 0, 0), "prctl")

    def quiet(self):
        """Handles SIGINT without KeyboardInterrupt, so that the code of an interrupted call is known."""
        signal.signal(signal.SIGINT, lambda *_: None)

    def fork(self):
        """Starts a child that does nothing and never execs."""
        child = os.fork()
        if not child:
            while True:
                signal.pause()
        return child

    def prepare(self, *names):
        """Makes a thread for each operation, with the context, which waits for its beginning."""
        def run(name, begun):
            self.code("cuCtxSetCurrent", self.keep["context"])
            begun.wait()
            began = time.monotonic()
            try:
                value = getattr(self, name)()
            except Exception as e:
                value = f"{type(e).__name__}: {e}"
            self.results[name] = [value, round(time.monotonic() - began, 3)]
        for name in names:
            begun = threading.Event()
            thread = threading.Thread(target=run, args=(name, begun), daemon=True)
            thread.start()
            self.keep[name] = begun, thread

    def begin(self, name):
        """Begins a prepared operation and returns the number of its thread."""
        begun, thread = self.keep[name]
        begun.set()
        return thread.native_id

    def ended(self):
        """Returns the results of the threads that have ended, with their seconds."""
        return self.results

    def tick(self):
        """Counts in a thread until the process ends."""
        self.results["ticks"] = [0, 0.0]
        def run():
            ticks, last = self.results["ticks"], time.monotonic()
            while True:
                time.sleep(0.002)
                now = time.monotonic()
                ticks[0], ticks[1], last = ticks[0] + 1, round(max(ticks[1], now - last), 3), now
        threading.Thread(target=run, daemon=True).start()

    def ticks(self):
        """Returns how often tick has counted since the last time, and the longest pause in seconds."""
        ticks, self.results["ticks"][:] = list(self.results["ticks"]), [0, 0.0]
        return ticks

    def ancestor(self, mib):
        """Starts a child with CUDA, and saves and restores it."""
        with Worker() as child:
            child.ask("start", mib)
            self.cu("cuInit", 0)
            codes = {name: self.step(name, child.pid) for name in ("Lock", "Checkpoint", "Restore", "Unlock")}
            return {"codes": codes, "right": child.ask("right")}

    # PyTorch.

    def torch(self):
        import torch
        self.keep["torch"] = torch
        return torch.__version__

    def torch_available(self):
        return self.keep["torch"].cuda.is_available()

    def torch_count(self):
        return self.keep["torch"].cuda.device_count()

    def torch_name(self):
        return self.keep["torch"].cuda.get_device_name(0)

    def torch_zeros(self):
        return float(self.keep["torch"].zeros(1).cuda().sum())

    def torch_matmul(self):
        a = self.keep["torch"].ones(512, 512, device="cuda")
        return float((a @ a).sum())

    def torch_make(self, mib):
        """Makes a tensor of the size, pinned memory, a stream with work, and a graph that adds one."""
        torch = self.keep["torch"]
        torch.manual_seed(1)
        big = torch.randint(0, 1 << 30, (mib << 18,), dtype=torch.int32, device="cuda")
        pinned = torch.arange(1 << 20).pin_memory()
        stream, numbers = torch.cuda.Stream(), torch.zeros(1 << 16, device="cuda")
        numbers += 1  # loads its kernel, which a capture may not
        numbers.zero_()
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=stream):
            numbers += 1
        self.keep["made"] = (big, pinned, stream, numbers, graph)
        self.keep["sums"] = int(big.sum()), int(pinned.sum())
        return self.torch_replay()

    def torch_replay(self):
        """Replays the graph, works in the stream, and returns the sum of the graph's numbers / their count."""
        torch, (big, pinned, stream, numbers, graph) = self.keep["torch"], self.keep["made"]
        graph.replay()
        torch.cuda.synchronize()
        with torch.cuda.stream(stream):
            copied = pinned.to("cuda", non_blocking=True).sum()
        torch.cuda.synchronize()
        right = (int(big.sum()), int(copied)) == self.keep["sums"]
        return {"count": float(numbers.mean()), "right": right, "reserved": torch.cuda.memory_reserved() >> 20}


def work():
    """Reads operations and answers, until stdin ends."""
    out = os.dup(1)
    os.dup2(2, 1)  # a library that prints does not spoil the answers
    operations, number = Operations(), 0
    while True:
        try:
            line = sys.stdin.readline()
            if not line:
                return
            number, name, *args = json.loads(line)
            reply = {"number": number, "value": getattr(operations, name)(*args)}
        except BaseException as e:  # KeyboardInterrupt too: it is a result
            reply = {"number": number, "error": f"{type(e).__name__}: {e}"}
        os.write(out, json.dumps(reply).encode() + b"\n")


def stub(options):
    """Sets up this process as the options say, and execs a worker or another program."""
    o = json.loads(options)
    if o["hide"]:
        hide(o["hide"], o["folder"])
    if o["uid"]:
        os.setgroups([])
        os.setresgid(o["uid"], o["uid"], o["uid"])
        os.setresuid(o["uid"], o["uid"], o["uid"])
        os.environ["HOME"] = "/tmp"
    os.chdir("/")
    if o["nnp"]:
        checked(LIBC.prctl(38, 1, 0, 0, 0), "PR_SET_NO_NEW_PRIVS")
    if o["trap"]:
        listener = install([CALLS[name][0] for name in o["trap"]], o["killable"])
        with socket.socket(fileno=o["socket"]) as s:
            socket.send_fds(s, [b"x"], [listener])
        os.close(listener)
    os.execv(o["argv"][0], o["argv"])


def hide(nodes, folder):
    """Gives this process a /dev of its own, without some nodes. The real one is at folder/dev."""
    checked(LIBC.unshare(0x20000), "unshare")  # CLONE_NEWNS
    real = os.path.join(folder, "dev")
    os.makedirs(real, exist_ok=True)
    mount("none", "/", None, 0x44000)  # MS_REC | MS_PRIVATE
    mount("/dev", real, None, 0x5000)  # MS_BIND | MS_REC
    mount("tmpfs", "/dev", "tmpfs", 0)
    os.chmod("/dev", 0o755)
    for name in os.listdir(real):
        try:
            if name not in nodes:
                show(name, folder)
        except OSError:
            if "nvidia" in name:
                raise


def show(name, folder):
    """Mounts an entry of the real /dev into this process's /dev."""
    source, target = os.path.join(folder, "dev", name), os.path.join("/dev", name)
    if os.path.islink(source):
        os.symlink(os.readlink(source), target)
        return
    if os.path.isdir(source):
        os.mkdir(target)
    else:
        os.close(os.open(target, os.O_CREAT | os.O_WRONLY, 0o666))
    mount(source, target, None, 0x5000)


def mount(source, target, kind, flags):
    checked(LIBC.mount(source.encode(), target.encode(), kind and kind.encode(), ctypes.c_ulong(flags), None),
            f"mount {target}")


def install(numbers, killable):
    """Sets a seccomp filter that hands these system calls to a listener, and returns the listener.

    With killable a signal that does not kill does not interrupt a call that the listener has got.
    """
    program = [(0x20, 0, 0, 0)]  # load the number
    for i, number in enumerate(numbers):
        program.append((0x15, len(numbers) - i, 0, number))  # jump to the last line if it is equal
    program += [(0x06, 0, 0, 0x7FFF0000), (0x06, 0, 0, 0x7FC00000)]  # SECCOMP_RET_ALLOW, SECCOMP_RET_USER_NOTIF
    code = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *line) for line in program))
    text = struct.pack("HxxxxxxP", len(program), ctypes.addressof(code))
    return checked(LIBC.syscall(317, 1, ctypes.c_ulong(8 | 32 * killable), text), "seccomp")  # NEW_LISTENER


# The other side.

class Trap(threading.Thread):
    """Answers the trapped system calls of a worker, in a thread, and keeps a log of them.

    judge gets each entry of the log and returns what to do: None (go on), an errno, or a float (seconds to wait first).
    """

    def __init__(self, listener, judge=None):
        super().__init__(daemon=True)
        self.listener, self.judge, self.phase, self.log = listener, judge, "start", []
        self.running, self.closed, self.stale = threading.Event(), False, 0
        self.running.set()
        self.start()

    def run(self):
        poll = select.poll()
        poll.register(self.listener, select.POLLIN)
        while not self.closed:
            self.running.wait()
            events = poll.poll(50)
            if not events or not self.running.is_set():
                continue
            if events[0][1] & (select.POLLHUP | select.POLLNVAL):
                break
            got = bytearray(80)
            try:
                fcntl.ioctl(self.listener, 0xC0502100, got)
            except OSError as e:
                if e.errno in (errno.ENOENT, errno.EINTR):
                    continue
                break
            self.take(struct.unpack("QIIiIQ6Q", got))
        self.closed = True
        os.close(self.listener)

    def take(self, got):
        id, pid, _, number, _, _, *args = got
        entry = {"t": time.monotonic(), "phase": self.phase, "pid": pid, "call": NAMES.get(number, number),
                 "what": self.describe(pid, number, args)}
        self.log.append(entry)
        verdict = self.judge and self.judge(entry)
        if isinstance(verdict, float):
            threading.Timer(verdict, self.answer, (id, None)).start()
        else:
            self.answer(id, verdict)

    def answer(self, id, error):
        try:
            fcntl.ioctl(self.listener, 0xC0182101, bytearray(struct.pack("QqiI", id, 0, -(error or 0), 0 if error else 1)))
        except OSError:  # the caller was killed, or interrupted
            self.stale += 1

    @staticmethod
    def describe(pid, number, args):
        name, (_, path) = NAMES.get(number, "?"), CALLS.get(NAMES.get(number), (0, None))
        if path is not None:
            return peek(pid, args[path], 200).split(b"\0")[0].decode(errors="replace")
        if name != "ioctl":
            return " ".join(str(a) if a < 1 << 31 else hex(a) for a in args[:2])
        try:
            target = os.readlink(f"/proc/{pid}/fd/{args[0] & 0xFFFFFFFF}")
        except OSError:
            target = "?"
        request = args[1] & 0xFFFFFFFF
        if "nvidia" not in target:
            return f"{'other' if request >> 8 & 255 != 0x46 else target} {request:#x}"
        text = f"{os.path.basename(target)} "
        if "uvm" in target:
            return text + (hex(request) if request > 0xFFFF else str(request))
        text += f"F{request & 255:02x}" if request >> 8 & 255 == 0x46 else hex(request)
        if request & 255 == 0x2B:  # NV_ESC_RM_ALLOC: the class of the object
            text += " class " + peek(pid, args[2] + 12, 4)[::-1].hex()
        return text

    def close(self):
        """Closes the listener."""
        self.closed = True
        self.running.set()
        self.join(5)


def peek(pid, address, size):
    try:
        with open(f"/proc/{pid}/mem", "rb", buffering=0) as f:
            return os.pread(f.fileno(), min(size, 4096 - address % 4096), address)
    except (OSError, OverflowError):
        return b"?"


@functools.lru_cache
def interpreter(uid):
    """Returns a Python that this user can run."""
    for path in (sys.executable, "/usr/bin/python3", "/usr/local/bin/python3"):
        try:
            if not uid or not subprocess.run([path, "-c", "import ctypes"], user=uid, cwd="/",
                                             capture_output=True, timeout=20).returncode:
                return path
        except OSError:
            pass
    raise RuntimeError(f"user {uid} can run no Python")


class Worker:
    """A process that runs operations, or another program."""

    def __init__(self, uid=None, nnp=False, trap=(), judge=None, hide=(), argv=None, env=(), killable=False):
        self.sent, self.trap, self.errors, self.buffer = 0, None, tempfile.TemporaryFile(), b""
        self.folder = tempfile.mkdtemp(prefix="ekg-gpucheck-") if hide else None
        here, there = socket.socketpair()
        argv = argv or [interpreter(uid), "-B", os.path.abspath(__file__), "work"]
        options = {"uid": uid, "nnp": nnp, "trap": list(trap), "hide": list(hide), "folder": self.folder,
                   "killable": killable, "argv": argv, "socket": there.fileno()}
        self.process = subprocess.Popen(
            [sys.executable, "-B", os.path.abspath(__file__), "stub", json.dumps(options)], stdin=subprocess.PIPE,
            stdout=subprocess.PIPE, stderr=self.errors, pass_fds=[there.fileno()], bufsize=0,
            env=dict(os.environ, **dict(env)))
        self.pid = self.process.pid
        there.close()
        if trap:
            here.settimeout(10)
            _, fds, _, _ = socket.recv_fds(here, 1, 1)
            if not fds:
                self.process.wait(5)
                raise RuntimeError("no filter: " + self.said())
            os.set_inheritable(fds[0], False)
            self.trap = Trap(fds[0], judge)
        here.close()

    def send(self, name, *args):
        if self.trap:
            self.trap.phase = name
        self.sent += 1
        self.process.stdin.write(json.dumps([self.sent, name, *args]).encode() + b"\n")

    def reply(self, timeout=20.0):
        """Returns the answer to what was sent last. Late answers to earlier operations are dropped."""
        end = time.monotonic() + timeout
        while True:
            line, found, rest = self.buffer.partition(b"\n")
            if found:
                self.buffer, answer = rest, json.loads(line)
                if answer["number"] < self.sent:
                    continue
                if "error" in answer:
                    raise RuntimeError(answer["error"])
                return answer["value"]
            if not select.select([self.process.stdout], [], [], max(0, end - time.monotonic()))[0]:
                raise Silent(f"no answer in {timeout:g} s")
            got = os.read(self.process.stdout.fileno(), 1 << 16)
            if not got:
                raise RuntimeError(f"the process ended with {self.process.wait(5)}: {self.said()}")
            self.buffer += got

    def ask(self, name, *args, timeout=20.0):
        self.send(name, *args)
        return self.reply(timeout)

    def said(self):
        self.errors.seek(0)
        return self.errors.read().decode(errors="replace").strip()[-300:]

    def appear(self, nodes):
        """Shows hidden nodes of /dev to the process, from outside."""
        code = ("import os, sys, gpuworker as g; f = os.open(f'/proc/{sys.argv[1]}/ns/mnt', os.O_RDONLY); "
                "g.checked(g.LIBC.setns(f, 0), 'setns'); [g.show(n, sys.argv[2]) for n in sys.argv[3:]]")
        done = subprocess.run([sys.executable, "-B", "-c", code, str(self.pid), self.folder, *nodes], text=True,
                              cwd=os.path.dirname(os.path.abspath(__file__)), capture_output=True, timeout=10)
        if done.returncode:
            raise RuntimeError(done.stderr.strip()[-300:])

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.kill()
        try:
            self.process.wait(5)
        except subprocess.TimeoutExpired:
            pass  # it hangs in the driver
        if self.trap and not self.trap.closed:
            self.trap.close()
        for f in (self.process.stdin, self.process.stdout, self.errors):
            f.close()
        if self.folder:
            for path in (os.path.join(self.folder, "dev"), self.folder):
                if os.path.isdir(path):
                    os.rmdir(path)


if __name__ == "__main__":
    work() if sys.argv[1] == "work" else stub(sys.argv[2])
