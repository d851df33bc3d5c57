/*
 * A process that stands for a fake kernel where there are thousands of them: as small as a process can be. The kernel
 * itself is one of many in a process of the harness; see host.go. It is told the connection file, and the stub lives
 * until either of them ends.
 *
 *   stub SOCKET CONNECTION_FILE
 */
#include <signal.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

int main(int argc, char **argv) {
	struct sockaddr_un address = {.sun_family = AF_UNIX};
	char byte;
	int s = socket(AF_UNIX, SOCK_STREAM, 0);
	if (argc != 3 || s < 0 || strlen(argv[1]) >= sizeof address.sun_path)
		return 2;
	strcpy(address.sun_path, argv[1]);
	signal(SIGINT, SIG_IGN);
	if (connect(s, (struct sockaddr *)&address, sizeof address))
		return 1;
	if (write(s, argv[2], strlen(argv[2])) < 0 || write(s, "\n", 1) < 0)
		return 1;
	return read(s, &byte, 1) > 0; /* a byte says that the kernel has failed */
}
