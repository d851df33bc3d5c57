// Package launchertest serves tests of launchers, supervisors and the gateway. It has a fake kernel that speaks real
// ZeroMQ, as a library (FakeKernel) and as a program (launchertest/kernel), and the suite that every launcher must
// pass. It is for tests and benchmarks only; no shipped program imports it.
//
// # The fake kernel
//
// It answers kernel_info, execute, complete, history, is_complete, inspect, comm_info, comm messages (which it echoes),
// interrupt, shutdown, debug_request (which it echoes) and, if asked for, subshell requests. Its ZeroMQ is its own,
// independent of the library that supervisors use. A cell's code is a list of commands, one a line:
//
//	print N [every D]     N messages on stdout, numbered from 0, one a line
//	echo TEXT             TEXT on stdout
//	stderr TEXT           TEXT on stderr (the channel)
//	complain TEXT         TEXT on the process's own stderr
//	flood N [of B]        N display_data, numbered from 0; each text has B bytes more
//	big N                 one display_data of N bytes
//	show JSON             one display_data whose application/json is JSON, or as Python's json writes it
//	buffers N             one comm_msg with a binary buffer of N bytes
//	result TEXT           an execute_result
//	set NAME VALUE        keeps a variable
//	get NAME              its value as execute_result, or a NameError
//	pid                   the process id as execute_result
//	sleep D               waits; an interrupt ends it
//	finally PATH          if an interrupt ends this cell, the file PATH is created
//	then COMMAND          one command that is run after the cell's reply and idle, also if the cell fails
//	input PROMPT          asks on stdin, writes the answer to stdout
//	password PROMPT       asks for a hidden answer, writes it to stdout
//	error                 fails with ValueError
//	background N every D  N stdout messages that may come after idle
//	lose idle             the idle of this cell is lost, as when a PUB socket drops it
//	lose N                N outputs are lost: counted in msg_ids, never sent
//	garbage               three invalid messages on iopub: no delimiter, wrong signature, too few frames
//	claim N               the header of an iopub frame that claims N bytes, and nothing after it
//	exit CODE             ends the process
//	crash                 kills the process with SIGKILL, after its earlier messages were sent
//	hang                  never answers on shell again
//
// D is a duration as Go writes it. N of bytes takes the suffixes k, m and g (decimal). The msg_id of all its messages
// ends in one counter over all channels, as ipykernel's does.
//
// Every goroutine of a FakeKernel is started by StartFakeKernel, by a connection that it accepted or by a cell, and
// Close waits for all of them.
package launchertest
