package main

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/elastic-kernel-gateway/ekg/launcher/launchertest/usage"
)

const (
	hostedUsers     = 100  // each has as many kernels
	hostedMost      = 1000 // supervisors in a process
	hostDescriptors = 32   // that a supervisor and its kernel need
)

// hostedName names a scenario with hostedKernels.
func hostedName(n int) string {
	return group(n) + " idle kernels, their supervisors many to a process"
}

// group writes a number with a comma before each three digits.
func group(n int) string {
	s := strconv.Itoa(n)
	for i := len(s) - 3; i > 0; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return s
}

// hostedKernels measures what kernels without clients cost a gateway, when they have started and when the gateway was
// killed and has adopted them. Supervisors and kernels are real, and many to a process: a machine has no memory for
// three processes for each of 10,000 kernels. They belong to 100 users.
//
// With -before, the present gateway starts the kernels. Then both adopt the same kernels in turn.
func (b *bench) hostedKernels(n int, period time.Duration) {
	labels := slices.DeleteFunc(slices.Clone(b.wanted), func(label string) bool {
		return !(&server{label: label}).isEKG() // the others have no supervisors
	})
	if len(labels) == 0 {
		return
	}
	l := &lane{b: b, spec: specHosted, framing: framingJSON}
	s, err := b.hostedServer(labels[0], n)
	if err == nil {
		l.peer = s
		err = l.hosted(s, n, period, labels)
	}
	if err != nil {
		b.fail(labels[0], "", err)
	}
	if s != nil {
		s.stop()
	}
}

// hosted does the measurements of hostedKernels with one server, whose label says which gateway it is.
func (l *lane) hosted(s *server, n int, period time.Duration, labels []string) error {
	empty := usage.Memory([]int{s.process.pid()})
	began := time.Now()
	if err := l.fill(n); err != nil {
		return err
	}
	n = len(l.kernels)
	l.add("kernels/s", float64(n)/time.Since(began).Seconds())
	if err := l.rest(s, n, period, ""); err != nil {
		return err
	}
	l.add("gateway kB/kernel", float64(usage.Memory([]int{s.process.pid()})-empty)/1e3/float64(n))
	for _, label := range labels {
		s.label = label
		if err := l.restart(s, n); err != nil {
			return err
		}
		if err := l.rest(s, n, period, adopted); err != nil {
			return err
		}
	}
	return nil
}

// rest measures the gateway of n idle kernels.
func (l *lane) rest(s *server, n int, period time.Duration, when string) error {
	time.Sleep(5 * time.Second) // what starts and adoptions leave to do is done
	gateway := []int{s.process.pid()}
	used, hosts := usage.ProcessorTime(gateway), usage.ProcessorTime(s.hostPIDs())
	time.Sleep(period)
	l.add("gateway CPU %"+when, 100*(usage.ProcessorTime(gateway)-used).Seconds()/period.Seconds())
	l.add("supervisors CPU %"+when, 100*(usage.ProcessorTime(s.hostPIDs())-hosts).Seconds()/period.Seconds())
	l.add("gateway MB"+when, float64(usage.Memory(gateway))/1e6)
	l.add("gateway descriptors"+when, float64(usage.Descriptors(gateway)))
	l.add("supervisor kB"+when, float64(usage.Memory(s.hostPIDs()))/1e3/float64(n))
	if err := l.lists(s, n, "list", when); err != nil {
		return err
	}
	return l.lists(s.as(s.users[0]), n/len(s.users), "list of a user", when)
}

// hostedServer starts a server whose supervisors run in as few processes as have descriptors for n.
func (b *bench) hostedServer(label string, n int) (*server, error) {
	s, err := b.newServer(label, true)
	if err != nil {
		return nil, err
	}
	if err := s.startHosts(n); err != nil {
		return s, err
	}
	if err := s.writeUsers(); err != nil {
		return s, err
	}
	// The stub finds the hosts' socket beside itself.
	if err := os.Link(filepath.Join(b.dir, "stub"), filepath.Join(s.dir, "stub")); err != nil {
		return s, err
	}
	return s, s.run()
}

// startHosts starts processes that run n supervisors together.
func (s *server) startHosts(n int) error {
	var limit syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit); err != nil {
		return err
	}
	most := int(min(hostedMost, limit.Cur/hostDescriptors)) // Go has raised Cur
	l, err := net.ListenUnix("unix", &net.UnixAddr{Net: "unix", Name: filepath.Join(s.dir, "supervisors")})
	if err != nil {
		return err
	}
	defer l.Close() //nolint:errcheck // the hosts have it
	l.SetUnlinkOnClose(false)
	socket, err := l.File()
	if err != nil {
		return err
	}
	defer socket.Close() //nolint:errcheck // the hosts have it
	program, err := os.Executable()
	if err != nil {
		return err
	}
	const spare = 20 // starts that fail use a place, too
	for i := range (n + n/spare + most - 1) / most {
		cmd := exec.Command(program)
		cmd.Env = append(os.Environ(), supervisorsVariable+"="+strconv.Itoa(most))
		cmd.ExtraFiles = []*os.File{socket}
		p, err := s.b.start(cmd, filepath.Join(s.dir, fmt.Sprintf("host-%d.log", i)))
		if err != nil {
			return err
		}
		s.hosts = append(s.hosts, p)
	}
	return nil
}

func (s *server) hostPIDs() (all []int) {
	for _, h := range s.hosts {
		all = append(all, h.pid())
	}
	return all
}

func (s *server) usersFile() string { return filepath.Join(s.dir, "users.yaml") }

// writeUsers writes the file of an admin, who makes the server's requests, and of the users, who start kernels.
func (s *server) writeUsers() error {
	var file strings.Builder
	file.WriteString("users:\n")
	add := func(name, rest string) string {
		token := "token-of-the-benchmarks-" + name // on loopback, for an hour
		sum := sha256.Sum256([]byte(token))
		fmt.Fprintf(&file, "- {name: %s, tokens: [\"sha256:%s\"]%s}\n", name, hex.EncodeToString(sum[:]), rest)
		return token
	}
	s.token = add("admin", ", admin: true")
	for i := range hostedUsers {
		s.users = append(s.users, add(fmt.Sprintf("user-%d", i), ""))
	}
	return os.WriteFile(s.usersFile(), []byte(file.String()), 0o600)
}

// as returns the server for requests with another token.
func (s *server) as(token string) *server {
	other := *s
	other.token = token
	return &other
}
