/*
 * A process that stands for a fake kernel, or for a supervisor, where there are thousands of them: as small as a process
 * can be. The kernel or supervisor itself is one of many in a process of the harness; see host.go and supervisors.go.
 *
 *   stub SOCKET CONNECTION_FILE
 *
 * is a kernel. It tells the host the connection file, and lives until either of them ends. If the kernel fails, the host
 * sends the reason. It goes to standard error, where servers read why a kernel has ended.
 *
 *   stub parent --config FILE --ready-fd N
 *
 * is the program of a supervisor, as a launcher starts it. It tells the host FILE, copies the host's answer to
 * descriptor N, and ends. The host's socket is "supervisors" beside this program.
 */
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

/* ask connects to a host and writes a line. It returns the connection, or -1. */
static int ask(const char *path, const char *text) {
	struct sockaddr_un address = {.sun_family = AF_UNIX};
	int s = socket(AF_UNIX, SOCK_STREAM, 0);
	if (s < 0 || strlen(path) >= sizeof address.sun_path)
		return -1;
	strcpy(address.sun_path, path);
	if (connect(s, (struct sockaddr *)&address, sizeof address))
		return -1;
	if (write(s, text, strlen(text)) < 0 || write(s, "\n", 1) < 0)
		return -1;
	return s;
}

static int supervisor(char **argv) {
	static const char name[] = "supervisors";
	char path[4096], answer[4096];
	char *slash = strrchr(argv[0], '/');
	size_t folder = slash ? slash + 1 - argv[0] : 0;
	int s, ready = atoi(argv[5]);
	ssize_t n;
	if (folder + sizeof name > sizeof path)
		return 2;
	memcpy(path, argv[0], folder);
	memcpy(path + folder, name, sizeof name);
	if ((s = ask(path, argv[3])) < 0)
		return 1;
	while ((n = read(s, answer, sizeof answer)) > 0)
		if (write(ready, answer, n) != n)
			return 1;
	return n < 0;
}

int main(int argc, char **argv) {
	char why[4096];
	int s, failed = 0;
	ssize_t n;
	if (argc >= 6 && !strcmp(argv[1], "parent"))
		return supervisor(argv);
	if (argc != 3)
		return 2;
	signal(SIGINT, SIG_IGN);
	if ((s = ask(argv[1], argv[2])) < 0)
		return 1;
	for (; (n = read(s, why, sizeof why)) > 0; failed = 1)
		if (write(2, why, n) != n)
			return 1;
	return failed;
}
