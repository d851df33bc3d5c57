package launchertest

import (
	"flag"
	"fmt"
	"os"
	"os/signal"
	"syscall"
	"time"
)

// FakeKernelMain is the fake kernel as a program: it runs until the kernel ends and returns the exit code. Package
// launchertest/kernel only calls it. A test binary may call it in TestMain, and then is its own kernel.
//
//	kernel -f CONNECTION_FILE [--no-greeting] [--never-ready] [--start-delay D] [--exit-at-start CODE] [--stderr TEXT]
//	       [--ignore-sigterm] [--ignore-sigint] [--ignore-shutdown] [--protocol V] [--welcome] [--subshells]
//	       [--no-handover] [--hwm N] [--one-thread] [--subscribe-delay D]
//
// SIGINT interrupts the running cell. The other flags are those of FakeKernelOptions.
func FakeKernelMain(args []string) int {
	var (
		opts         = FakeKernelOptions{Stderr: os.Stderr}
		flags        = flag.NewFlagSet("kernel", flag.ContinueOnError)
		file         = flags.String("f", "", "connection `file`")
		startDelay   = flags.Duration("start-delay", 0, "wait before the sockets are bound")
		exitAtStart  = flags.Int("exit-at-start", -1, "exit with this `code` at once")
		words        = flags.String("stderr", "", "write this `text` to stderr at start")
		ignoreTerm   = flags.Bool("ignore-sigterm", false, "go on after SIGTERM")
		ignoreSigint = flags.Bool("ignore-sigint", false, "go on after SIGINT")
	)
	flags.StringVar(&opts.Protocol, "protocol", "", "protocol `version` in kernel_info_reply")
	flags.BoolVar(&opts.Welcome, "welcome", false, "send iopub_welcome to the first subscriber")
	flags.DurationVar(&opts.SubscribeDelay, "subscribe-delay", 0, "wait before a subscription to iopub takes effect")
	flags.BoolVar(&opts.Subshells, "subshells", false, "offer subshells")
	flags.BoolVar(&opts.Python, "python", false, "call itself Python, and ignore lines with exec(")
	flags.BoolVar(&opts.NoHandover, "no-handover", false, "ignore a connection whose identity is in use")
	flags.IntVar(&opts.HighWaterMark, "hwm", 0, "drop iopub messages when this `number` waits for a subscriber")
	flags.BoolVar(&opts.NoGreeting, "no-greeting", false, "accept connections and say nothing")
	flags.BoolVar(&opts.NeverReady, "never-ready", false, "answer nothing")
	flags.BoolVar(&opts.OneThread, "one-thread", false, "answer no heartbeat while a cell runs")
	flags.BoolVar(&opts.IgnoreShutdown, "ignore-shutdown", false, "go on after shutdown_request")
	if flags.Parse(args) != nil {
		return 2
	}
	if *words != "" {
		fmt.Fprintln(os.Stderr, *words)
	}
	if *exitAtStart >= 0 {
		return *exitAtStart
	}
	if *ignoreTerm {
		signal.Ignore(syscall.SIGTERM)
	}
	interrupts := make(chan os.Signal, 1)
	signal.Notify(interrupts, syscall.SIGINT)
	time.Sleep(*startDelay)
	conn, err := ReadConnection(*file)
	if err != nil {
		fmt.Fprintln(os.Stderr, "kernel:", err)
		return 1
	}
	k, err := StartFakeKernel(conn, opts)
	if err != nil {
		fmt.Fprintln(os.Stderr, "kernel:", err)
		return 1
	}
	if *ignoreSigint {
		interrupts = nil
	}
	return awaitEnd(k, interrupts)
}

// awaitEnd passes interrupts on until the kernel has ended, and returns its exit code. A signal that ends the kernel
// ends the process, too.
func awaitEnd(k *FakeKernel, interrupts <-chan os.Signal) int {
	for {
		select {
		case <-interrupts:
			k.Interrupt()
		case <-k.Done():
			code := k.Wait()
			if code < 0 {
				// It cannot be caught, so nothing below is reached.
				_ = syscall.Kill(os.Getpid(), syscall.Signal(-code)) // our own process
			}
			return code
		}
	}
}
