/*
 * A Jupyter client on libzmq, without a gateway: what the harness calls "direct". It loads libzmq from the file that is
 * named on its command line, for example the one in the wheel of pyzmq, so neither headers nor a library for the linker
 * are needed. It verifies no signatures. It reads commands from standard input and answers each with one line:
 *
 *   connect SHELL IOPUB                                     "ok"
 *   ask COUNT PACE LIMIT DEADLINE PAUSE_AT PAUSE BYTES      "done ..." below
 *
 * Behind the line of an ask are BYTES bytes with COUNT messages. A message is the number of its frames, and then the
 * length and the bytes of each; numbers have 32 bits, little endian. Each message is sent when the reply and the idle of
 * the one before have come, and not before PACE nanoseconds have passed since that one was sent. After LIMIT nanoseconds
 * no further message is sent. After DEADLINE nanoseconds the ask is given up. After PAUSE_AT outputs the client reads
 * nothing for PAUSE nanoseconds.
 *
 *   done COMPLETE OUTPUTS BYTES NANOSECONDS TIME...
 *
 * COMPLETE is 1, or 0 after the deadline. OUTPUTS counts messages of type display_data, BYTES their contents.
 * NANOSECONDS is the time of the whole ask. Each TIME is that of a request until its reply, in nanoseconds.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { ZMQ_SUB = 2, ZMQ_DEALER = 5, ZMQ_SUBSCRIBE = 6, ZMQ_LINGER = 17, ZMQ_DONTWAIT = 1, ZMQ_SNDMORE = 2, ZMQ_POLLIN = 1 };

typedef struct { unsigned char opaque[64] __attribute__((aligned(8))); } zmq_msg_t;
typedef struct { void *socket; int fd; short events, revents; } zmq_pollitem_t;

static void *(*ctx_new)(void), *(*new_socket)(void *, int), *(*msg_data)(zmq_msg_t *);
static int (*connect_to)(void *, const char *), (*set_option)(void *, int, const void *, size_t);
static int (*send_frame)(void *, const void *, size_t, int), (*msg_init)(zmq_msg_t *);
static int (*msg_recv)(zmq_msg_t *, void *, int), (*msg_more)(const zmq_msg_t *), (*msg_close)(zmq_msg_t *);
static int (*poll_items)(zmq_pollitem_t *, int, long);
static size_t (*msg_size)(const zmq_msg_t *);

static void *context, *shell, *iopub;

static void die(const char *what) {
	fprintf(stderr, "direct: %s: %s\n", what, strerror(errno));
	exit(1);
}

static void *symbol(void *library, const char *name) {
	void *found = dlsym(library, name);
	if (!found)
		die(name);
	return found;
}

static void load(const char *file) {
	void *library = dlopen(file, RTLD_NOW);
	if (!library) {
		fprintf(stderr, "direct: %s\n", dlerror());
		exit(1);
	}
	ctx_new = symbol(library, "zmq_ctx_new");
	new_socket = symbol(library, "zmq_socket");
	connect_to = symbol(library, "zmq_connect");
	set_option = symbol(library, "zmq_setsockopt");
	send_frame = symbol(library, "zmq_send");
	msg_init = symbol(library, "zmq_msg_init");
	msg_recv = symbol(library, "zmq_msg_recv");
	msg_data = symbol(library, "zmq_msg_data");
	msg_size = symbol(library, "zmq_msg_size");
	msg_more = symbol(library, "zmq_msg_more");
	msg_close = symbol(library, "zmq_msg_close");
	poll_items = symbol(library, "zmq_poll");
	context = ctx_new();
}

static int64_t now(void) {
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1000000000LL + t.tv_nsec;
}

static void sleep_until(int64_t at) {
	struct timespec t = {at / 1000000000LL, at % 1000000000LL};
	while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &t, NULL) == EINTR)
		;
}

static void *open_socket(int type, const char *endpoint) {
	int zero = 0;
	void *s = new_socket(context, type);
	if (!s || set_option(s, ZMQ_LINGER, &zero, sizeof zero))
		die("socket");
	if (type == ZMQ_SUB && set_option(s, ZMQ_SUBSCRIBE, "", 0))
		die("subscribe");
	if (connect_to(s, endpoint))
		die(endpoint);
	return s;
}

static uint32_t number(const unsigned char **at) {
	uint32_t n;
	memcpy(&n, *at, 4);
	*at += 4;
	return n;
}

static void send_message(const unsigned char **at) {
	for (uint32_t frames = number(at); frames > 0; frames--) {
		uint32_t size = number(at);
		if (send_frame(shell, *at, size, frames > 1 ? ZMQ_SNDMORE : 0) < 0)
			die("send");
		*at += size;
	}
}

/* What has arrived on iopub. */
static struct { int64_t outputs, bytes; int idle; } seen;

/* Reads one message of iopub. Returns 0 if none has arrived. */
static int read_iopub(void) {
	enum { HEADER = 3, CONTENT = 6 }; /* behind the topic */
	int output = 0, status = 0, more = 1;
	for (int i = 0; more; i++) {
		zmq_msg_t m;
		msg_init(&m);
		if (msg_recv(&m, iopub, i == 0 ? ZMQ_DONTWAIT : 0) < 0) {
			if (i == 0 && errno == EAGAIN)
				return 0;
			die("receive");
		}
		const void *data = msg_data(&m);
		size_t size = msg_size(&m);
		if (i == HEADER) {
			output = memmem(data, size, "\"display_data\"", 14) != NULL;
			status = memmem(data, size, "\"status\"", 8) != NULL;
		} else if (i == CONTENT) {
			if (output) {
				seen.outputs++;
				seen.bytes += size;
			} else if (status && memmem(data, size, "\"idle\"", 6))
				seen.idle = 1;
		}
		more = msg_more(&m);
		msg_close(&m);
	}
	return 1;
}

/* Reads one message of shell. Returns 0 if none has arrived. */
static int read_shell(void) {
	for (int i = 0, more = 1; more; i++) {
		zmq_msg_t m;
		msg_init(&m);
		if (msg_recv(&m, shell, i == 0 ? ZMQ_DONTWAIT : 0) < 0) {
			if (i == 0 && errno == EAGAIN)
				return 0;
			die("receive");
		}
		more = msg_more(&m);
		msg_close(&m);
	}
	return 1;
}

/* Waits for reply and idle. Returns when the reply came, or 0 after the deadline. */
static int64_t answered(int64_t deadline, int64_t *pause_at, int64_t pause) {
	int64_t replied = 0;
	seen.idle = 0;
	while (!replied || !seen.idle) {
		int any = 0;
		if (!replied && read_shell()) {
			replied = now();
			any = 1;
		}
		for (int n = 0; n < 1000 && !seen.idle && read_iopub(); n++)
			any = 1;
		if (*pause_at > 0 && seen.outputs >= *pause_at) {
			*pause_at = 0;
			sleep_until(now() + pause);
		}
		if (any)
			continue;
		int64_t left = deadline - now();
		if (left <= 0)
			return 0;
		zmq_pollitem_t items[] = {{iopub, 0, ZMQ_POLLIN, 0}, {shell, 0, ZMQ_POLLIN, 0}};
		poll_items(items, replied ? 1 : 2, left / 1000000 + 1);
	}
	return replied;
}

static void ask(int64_t count, int64_t pace, int64_t limit, int64_t deadline, int64_t pause_at, int64_t pause,
		const unsigned char *at) {
	int64_t *times = malloc((count + 1) * sizeof *times), asked = 0, complete = 1, began = now(), sent = 0;
	while (read_shell() || read_iopub())
		; /* what an ask that was given up has left */
	memset(&seen, 0, sizeof seen);
	for (; asked < count; asked++) {
		if (pace && asked)
			sleep_until(sent + pace);
		sent = now();
		if (asked && sent - began > limit)
			break;
		send_message(&at);
		int64_t replied = answered(began + deadline, &pause_at, pause);
		if (!replied) {
			complete = 0;
			break;
		}
		times[asked] = replied - sent;
	}
	printf("done %ld %ld %ld %ld", (long)complete, (long)seen.outputs, (long)seen.bytes, (long)(now() - began));
	for (int64_t i = 0; i < asked; i++)
		printf(" %ld", (long)times[i]);
	printf("\n");
	free(times);
}

int main(int argc, char **argv) {
	char line[4096], a[2048], b[2048];
	if (argc != 2) {
		fprintf(stderr, "direct: usage: direct LIBZMQ\n");
		return 2;
	}
	load(argv[1]);
	while (fgets(line, sizeof line, stdin)) {
		long count, pace, limit, deadline, pause_at, pause, bytes;
		if (sscanf(line, "connect %2047s %2047s", a, b) == 2) {
			shell = open_socket(ZMQ_DEALER, a);
			iopub = open_socket(ZMQ_SUB, b);
			printf("ok\n");
		} else if (sscanf(line, "ask %ld %ld %ld %ld %ld %ld %ld", &count, &pace, &limit, &deadline, &pause_at, &pause,
				   &bytes) == 7) {
			unsigned char *messages = malloc(bytes + 1);
			if (fread(messages, 1, bytes, stdin) != (size_t)bytes)
				die("read");
			ask(count, pace, limit, deadline, pause_at, pause, messages);
			free(messages);
		} else {
			fprintf(stderr, "direct: unknown command: %s", line);
			return 2;
		}
		fflush(stdout);
	}
	return 0;
}
