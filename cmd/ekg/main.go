// Command ekg is the Elastic Kernel Gateway: it runs Jupyter kernels for any Jupyter front end.
//
//	ekg serve                  serve Jupyter's kernel API and print its URL
//	ekg ps                     list kernels
//	ekg start [KERNELSPEC]     start a kernel and print its id
//	ekg stop KERNEL...         end kernels
//	ekg restart KERNEL...      restart kernels: their variables are lost
//	ekg interrupt KERNEL...    interrupt the running cells of kernels
//	ekg keep KERNEL...         keep kernels from being culled
//	ekg log KERNEL             print a kernel's output
//	ekg run NOTEBOOK           submit a notebook as a job, and print its id
//	ekg jobs                   list jobs; subcommands: follow, logs, notebook, stop, rm
//	ekg jobs definitions       list job definitions; subcommands: pause, resume, run, rm
//	ekg usage                  show how long GPUs were held, and how long they were busy
//	ekg top                    show who holds GPUs, and whether they compute; subcommands: nodes, kernels, users
//	ekg login URL              store your token for a gateway
//	ekg token                  create a token for a user, and its hash for the file of users
//	ekg config                 print the settings that serve would use, with their sources
//	ekg kernelspec list        list the kernels that can be started
//	ekg kernelspec check DIR   check kernelspecs before their use
//	ekg kernelspec render NAME print the pod that a kernelspec would create on Kubernetes
//	ekg kernelspec add SPEC    let programs of this machine use a gateway's kernelspec
//	ekg kernelspec remove NAME remove what kernelspec add has written
//	ekg relay                  be the process of such a kernel; programs start it
//	ekg supervisor upgrade     replace the supervisors of running kernels by the installed version
//	ekg completion SHELL       print a script for the completion of a shell
//	ekg version                print version and commit, as ekg --version does
//
// A setting is a flag (--start-wait 10s), a variable (EKG_START_WAIT=10s) or a key of the YAML file that --config names
// (start-wait: 10s). The first of these that is present counts. Package settings has all settings, including the
// variables of Jupyter Enterprise Gateway with the same meaning. `ekg serve --help-all` prints them. An error in a
// setting names the flag, the variable or the line, and the gateway does not start.
//
// The program also reads some variables without a setting. Jupyter's variables for the search of kernelspecs are
// JUPYTER_PATH, JUPYTER_DATA_DIR, JUPYTER_PREFER_ENV_PATH, VIRTUAL_ENV, CONDA_PREFIX, CONDA_DEFAULT_ENV,
// PYTHONUSERBASE, IPYTHONDIR and PATH. XDG_STATE_HOME, XDG_RUNTIME_DIR, XDG_DATA_HOME, HOME and TMPDIR give the place
// of the state. systemd sets INVOCATION_ID. Commands about kernels find their gateway by --gateway-url, EKG_GATEWAY_URL
// or JUPYTER_GATEWAY_URL, and else among this user's gateways on this machine. The token may be in EKG_TOKEN,
// EKG_TOKEN_FILE or JUPYTER_GATEWAY_AUTH_TOKEN. `ekg relay` gives KERNEL_* and JPY_SESSION_NAME to its kernel, and
// reads JPY_PARENT_PID.
//
// SIGTERM and SIGINT end the gateway in order: /readyz fails, the listener closes, and websockets close so that their
// clients reconnect. Kernels go on, or are stopped with --stop-kernels-on-exit. A second signal ends the program at
// once. With --audit-log FILE a SIGHUP reopens that file. The exit status is 0 after an orderly end, 1 after a failure,
// and 2 if the command line or a setting is wrong.
//
// Begin to read the code with server.serve in serve_linux.go: it starts all parts of the gateway, and lists how they
// stop. launcher_linux.go opens the launcher. Package client has the commands that ask gateways, and those that need
// none. On macOS and Windows the program has only these.
package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"
)

// version is set by the linker.
var version = "dev"

func main() {
	ctx, end := context.WithCancel(context.Background())
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGTERM, os.Interrupt)
	go func() {
		<-signals
		// A second signal has its default effect: it ends the program at once. Signals are reset before the program shows
		// that it is ending.
		signal.Stop(signals)
		end()
	}()
	os.Exit(program().Run(ctx, os.Args, os.Stdout, os.Stderr))
}
