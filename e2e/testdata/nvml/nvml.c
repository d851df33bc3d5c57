// A stand-in for NVIDIA's library, so that ekg-gpu can be run where there is no GPU: one GPU that does what the file "use" beside the
// library says, which is a line of three numbers: the percentage of its time in which it computes, a process id, and the percentage for that process.
// A fourth one has the MiB of its memory that are in use (1024 without it). A fifth one is how many such GPUs there are (1 without it).
// It has what ekg-gpu calls, with the signatures of NVML 12 (nvml.h).
//
//	cc -shared -fPIC -o libnvidia-ml.so.1 nvml.c
#define _GNU_SOURCE
#include <dlfcn.h>
#include <libgen.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>

enum { SUCCESS = 0, NOT_SUPPORTED = 3, NOT_FOUND = 6, INSUFFICIENT_SIZE = 7, UNKNOWN = 999 };

struct utilization { unsigned gpu, memory; };
struct memory { unsigned long long total, free, used; };
struct process_sample { unsigned pid; unsigned long long at; unsigned sm, memory, encoder, decoder; };
struct process { unsigned pid; unsigned long long memory; unsigned gpu_instance, compute_instance; };

static unsigned long long mib;
static unsigned gpus;

static int use(unsigned *all, unsigned *pid, unsigned *its)
{
	Dl_info self;
	char library[PATH_MAX], path[PATH_MAX + 8];
	if (!dladdr((void *)use, &self) || strlen(self.dli_fname) >= sizeof library)
		return UNKNOWN;
	strcpy(library, self.dli_fname);
	snprintf(path, sizeof path, "%s/use", dirname(library));
	FILE *f = fopen(path, "r");
	if (!f)
		return UNKNOWN;
	mib = 1024;
	gpus = 1;
	int n = fscanf(f, "%u %u %u %llu %u", all, pid, its, &mib, &gpus);
	fclose(f);
	return n >= 3 ? SUCCESS : UNKNOWN;
}

static int one(unsigned *count, struct process *list)
{
	unsigned all, its;
	if (*count < 1)
		return INSUFFICIENT_SIZE;
	*count = 1;
	memset(list, 0, sizeof *list);
	return use(&all, &list->pid, &its);
}

static int none(unsigned *count) { *count = 0; return SUCCESS; }

int nvmlInit_v2(void) { return SUCCESS; }
int nvmlShutdown(void) { return SUCCESS; }
const char *nvmlErrorString(int code) { return code == UNKNOWN ? "the file that says what the GPU does cannot be read" : "an error"; }
int nvmlDeviceGetCount_v2(unsigned *n)
{
	unsigned all, pid, its;
	int code = use(&all, &pid, &its);
	*n = gpus;
	return code;
}
int nvmlDeviceGetHandleByIndex_v2(unsigned i, void **device) { *device = (void *)(1UL + i); return i < gpus ? SUCCESS : NOT_FOUND; }
int nvmlDeviceGetUUID(void *device, char *uuid, unsigned size)
{
	unsigned long i = (unsigned long)device - 1;
	snprintf(uuid, size, i ? "GPU-of-tests-%lu" : "GPU-of-tests", i);
	return SUCCESS;
}
int nvmlDeviceGetName(void *device, char *name, unsigned size) { snprintf(name, size, "GPU of tests"); return SUCCESS; }
int nvmlDeviceGetMemoryInfo(void *device, struct memory *m)
{
	unsigned all, pid, its;
	int code = use(&all, &pid, &its);
	*m = (struct memory){16ULL << 30, (16ULL << 30) - (mib << 20), mib << 20};
	return code;
}
int nvmlDeviceGetMigMode(void *device, unsigned *now, unsigned *next) { return NOT_SUPPORTED; }
int nvmlDeviceGetUtilizationRates(void *device, struct utilization *u) { unsigned pid, its; u->memory = 0; return use(&u->gpu, &pid, &its); }
int nvmlDeviceGetComputeRunningProcesses_v3(void *device, unsigned *n, struct process *list) { return one(n, list); }
int nvmlDeviceGetMPSComputeRunningProcesses_v3(void *device, unsigned *n, struct process *list) { return none(n); }
int nvmlDeviceGetGraphicsRunningProcesses_v3(void *device, unsigned *n, struct process *list) { return none(n); }

int nvmlDeviceGetProcessUtilization(void *device, struct process_sample *samples, unsigned *n, unsigned long long since)
{
	unsigned all, pid, its;
	int code = use(&all, &pid, &its);
	if (code)
		return code;
	if (!its)
		return NOT_FOUND;
	if (!samples || *n < 1) {
		*n = 1;
		return INSUFFICIENT_SIZE;
	}
	*n = 1;
	*samples = (struct process_sample){.pid = pid, .at = since + 1, .sm = its};
	return SUCCESS;
}
