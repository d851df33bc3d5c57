// A stand-in for NVIDIA's library of CUDA (libcuda.so.1), so that GPU memory can be saved and restored where there is
// no GPU. It has one GPU, and what ekg-gpu and the tests' kernels call, with the signatures of CUDA 13 (cuda.h).
//
//	cc -shared -fPIC -pthread -o libcuda.so.1 cuda.c
//
// Files beside the library are the GPU. PID is the state of a process that uses CUDA. It counts while that process
// lives. "total" has the GPU's bytes (1 GiB without it), "pace" the microseconds that a save or a restore takes for
// each MiB (0). "fault" is a line "CALL CODE": the next call of that name returns the code, or ends its process if the
// code is negative.
//
// As in the real library a thread of the process itself saves and restores, whatever becomes of the caller. Calls of
// CUDA wait while the process is not running. A call in the wrong state is answered with ILLEGAL_STATE.
#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <libgen.h>
#include <limits.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

enum {
	SUCCESS = 0, INVALID_VALUE = 1, OUT_OF_MEMORY = 2, NOT_INITIALIZED = 3, ILLEGAL_STATE = 401, NOT_READY = 600,
	UNKNOWN = 999,
};
enum { RUNNING, LOCKED, CHECKPOINTED, FAILED };
enum { NOTHING, SAVE, RESTORE };

struct process {
	atomic_int state, wish, code; // the process's thread does the wish, stores the code and then NOTHING
	atomic_int calls, tid;        // calls of CUDA that have begun and not ended; the thread
	atomic_ulong bytes;
};

static struct process *own;
static pthread_mutex_t starting = PTHREAD_MUTEX_INITIALIZER;

static const char *path(char *to, const char *name)
{
	Dl_info self;
	char library[PATH_MAX];
	if (!dladdr((void *)path, &self) || strlen(self.dli_fname) >= sizeof library)
		abort();
	strcpy(library, self.dli_fname);
	snprintf(to, PATH_MAX, "%s/%s", dirname(library), name);
	return to;
}

static unsigned long number(const char *file, unsigned long otherwise)
{
	char name[PATH_MAX];
	FILE *f = fopen(path(name, file), "r");
	if (!f)
		return otherwise;
	if (fscanf(f, "%lu", &otherwise) != 1)
		abort();
	fclose(f);
	return otherwise;
}

static int fault(const char *call)
{
	char name[PATH_MAX], wanted[100];
	int code;
	FILE *f = fopen(path(name, "fault"), "r");
	if (!f)
		return SUCCESS;
	int read = fscanf(f, "%99s %d", wanted, &code);
	fclose(f);
	if (read != 2 || strcmp(wanted, call))
		return SUCCESS;
	unlink(name);
	if (code < 0)
		kill(getpid(), SIGKILL);
	return code;
}

static struct process *of(int pid, int flags)
{
	char name[PATH_MAX], id[20];
	snprintf(id, sizeof id, "%d", pid);
	int fd = open(path(name, id), O_RDWR | O_CLOEXEC | flags, 0600);
	if (fd < 0 || ftruncate(fd, sizeof(struct process)))
		return NULL;
	struct process *p = mmap(NULL, sizeof *p, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	close(fd);
	return p == MAP_FAILED ? NULL : p;
}

// take reserves bytes of the GPU for this process, or gives them back, while no other process does. It returns what is
// free before that, or -1 if that is too little.
static long take(long bytes)
{
	char name[PATH_MAX];
	int lock = open(path(name, "lock"), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
	if (lock < 0 || flock(lock, LOCK_EX))
		abort();
	long left = number("total", 1UL << 30);
	DIR *all = opendir(path(name, "."));
	for (struct dirent *e; all && (e = readdir(all));) {
		int pid = atoi(e->d_name);
		struct process *p = pid > 0 && (!kill(pid, 0) || errno == EPERM) ? of(pid, 0) : NULL;
		if (!p)
			continue;
		if (p->state != CHECKPOINTED)
			left -= p->bytes;
		munmap(p, sizeof *p);
	}
	closedir(all);
	if (bytes <= left && own)
		own->bytes += bytes;
	close(lock);
	return bytes <= left ? left : -1;
}

// uvm makes an ioctl of the driver's, where ekg may hold it. It has no effect. It fails if a signal ends the hold.
static int uvm(unsigned request)
{
	int null = open("/dev/null", O_RDWR | O_CLOEXEC), failed = ioctl(null, request, 0) && errno != ENOTTY;
	close(null);
	return failed ? UNKNOWN : SUCCESS;
}

// moves is the thread that saves and restores.
static void *moves(void *nothing)
{
	for (own->tid = syscall(SYS_gettid);; usleep(1000)) {
		int wish = own->wish, code = SUCCESS;
		if (wish == NOTHING)
			continue;
		usleep(number("pace", 0) * (own->bytes >> 20));
		if (wish == SAVE) {
			own->state = CHECKPOINTED;
		} else {
			if (uvm(37) || uvm(25))
				abort();
			unsigned long bytes = own->bytes; // they do not count while they are saved
			own->bytes = 0;
			own->state = LOCKED;
			if (take(bytes) < 0) {
				own->state = CHECKPOINTED;
				own->bytes = bytes;
				code = OUT_OF_MEMORY;
			}
		}
		own->code = code;
		own->wish = NOTHING;
	}
	return NULL;
}

// begin is at the start of each call of CUDA, and end at its end. In between the process cannot be locked.
static int begin(const char *call)
{
	if (!own)
		return NOT_INITIALIZED;
	for (;; usleep(1000)) {
		own->calls++;
		if (own->state == RUNNING)
			return fault(call);
		own->calls--;
	}
}

static int end(int code)
{
	own->calls--;
	return code;
}

#define CALL(...) { int code = begin(__func__); if (!own) return code; if (code) return end(code); \
		__VA_ARGS__; return end(SUCCESS); }

int cuInit(unsigned flags)
{
	int code = uvm(0x30000001); // UVM_INITIALIZE
	return code ? code : fault("cuInit");
}
int cuDriverGetVersion(int *version) { *version = 13000; return SUCCESS; }
int cuDeviceGetCount(int *n) { *n = 1; return SUCCESS; }
int cuDeviceGet(int *device, int i) { *device = 0; return i ? INVALID_VALUE : SUCCESS; }
int cuGetErrorString(int code, const char **text)
{
	*text = code == OUT_OF_MEMORY ? "out of memory" : code == NOT_READY ? "device not ready" : "an error of the tests";
	return SUCCESS;
}

int cuDevicePrimaryCtxRetain(void **context, int device)
{
	if (uvm(37) || uvm(25)) // UVM_REGISTER_GPU, UVM_REGISTER_GPU_VASPACE
		return UNKNOWN;
	pthread_mutex_lock(&starting);
	if (!own && (own = of(getpid(), O_CREAT | O_TRUNC))) {
		pthread_t thread;
		if (pthread_create(&thread, NULL, moves, NULL))
			abort();
		while (!own->tid)
			usleep(1000);
	}
	pthread_mutex_unlock(&starting);
	*context = own;
	return own ? SUCCESS : UNKNOWN;
}

int cuCtxSetCurrent(void *context) CALL()
int cuCtxSynchronize(void) CALL()
int cuMemAlloc_v2(uint64_t *at, size_t n)
CALL(if (take(n) < 0 || !(*at = (uintptr_t)malloc(n))) return end(OUT_OF_MEMORY))
int cuMemcpyHtoD_v2(uint64_t to, const void *from, size_t n) CALL(memcpy((void *)(uintptr_t)to, from, n))
int cuMemcpyDtoH_v2(void *to, uint64_t from, size_t n) CALL(memcpy(to, (void *)(uintptr_t)from, n))
int cuMemGetInfo_v2(size_t *left, size_t *total) CALL(*left = take(0); *total = number("total", 1UL << 30))

// ekgCompute is a call that takes a time, in milliseconds.
int ekgCompute(unsigned milliseconds) CALL(usleep(milliseconds * 1000))

static int checkpointed(int pid, const char *call, int from, struct process **p)
{
	int code = fault(call);
	if (code)
		return code;
	if (kill(pid, 0) || !(*p = of(pid, 0)))
		return NOT_INITIALIZED;
	return from >= 0 && (*p)->state != from ? ILLEGAL_STATE : SUCCESS;
}

int cuCheckpointProcessGetState(int pid, int *state)
{
	struct process *p;
	int code = checkpointed(pid, __func__, -1, &p);
	if (!code)
		*state = p->state;
	return code;
}

int cuCheckpointProcessGetRestoreThreadId(int pid, int *tid)
{
	struct process *p;
	int code = checkpointed(pid, __func__, -1, &p);
	if (!code)
		*tid = p->tid;
	return code;
}

int cuCheckpointProcessLock(int pid, unsigned *args)
{
	struct process *p;
	int code = checkpointed(pid, __func__, RUNNING, &p);
	if (code)
		return code;
	p->state = LOCKED;
	for (unsigned waited = 0; p->calls; waited++, usleep(1000))
		if (args && args[0] && waited >= args[0]) {
			p->state = RUNNING;
			return NOT_READY;
		}
	return SUCCESS;
}

static int wishes(int pid, const char *call, int from, int wish)
{
	struct process *p;
	int code = checkpointed(pid, call, from, &p);
	if (code)
		return code;
	p->wish = wish;
	while (p->wish != NOTHING) {
		if (kill(pid, 0))
			return UNKNOWN;
		usleep(1000);
	}
	return p->code;
}

int cuCheckpointProcessCheckpoint(int pid, void *args) { return wishes(pid, __func__, LOCKED, SAVE); }
int cuCheckpointProcessRestore(int pid, void *args) { return wishes(pid, __func__, CHECKPOINTED, RESTORE); }

int cuCheckpointProcessUnlock(int pid, void *args)
{
	struct process *p;
	int code = checkpointed(pid, __func__, LOCKED, &p);
	if (!code)
		p->state = RUNNING;
	return code;
}
